// Kernels around and instead of cuDNN's attention. All are repeatable.
#pragma once

#include "ops/attention/attention_memory.h"

namespace hawser::ops::cuda {

// The tables in the workspace, see SegmentTables; what a call does not use is null.
struct TablePointers {
  std::int32_t* query_segment = nullptr;
  std::int32_t* key_covered = nullptr;
  std::int32_t* query_length = nullptr;
  std::int32_t* key_length = nullptr;
  std::int64_t* offsets = nullptr;  // [kOffsetTables, N + 1]
};

// rows[t]: elements from row to row of tensor t of OffsetTable. A segment that leaves the tensors is reported
// (CudaFault) and counts as one without rows; so do all where their number is not in [0, N].
void make_tables(const CudaNative& native, const TensorView& segments, const TensorView& count, std::int64_t query_rows,
                 std::int64_t key_rows, const TablePointers& tables, const std::int64_t (&rows)[kOffsetTables]);

// The first elements in dk and dv of segments [first, first + count), whose gradients lie one behind the other: `row`
// elements from row to row.
void key_gradient_offsets(const CudaNative& native, const TensorView& segments, const TablePointers& tables,
                          std::int64_t first, std::int64_t count, std::int64_t row);

// How calls of cuDNN order log-sum-exps: [entries, heads, rows of an entry] of a batch, or with ragged rows [T, heads],
// from `base` on; for each group of heads, `group` elements apart.
struct StatsOrder {
  std::int64_t heads = 0;  // of a group
  std::int64_t group = 0, base = 0;
  SegmentBatch batch;  // no entries: ragged
};
// lse[h, t] = stats in the rows of `order`, -inf where query_segment says that the row sees nothing; may be in place
// where the order is.
void stats_to_lse(const CudaNative& native, const float* stats, const StatsOrder& order,
                  const std::int32_t* query_segment, const TensorView& lse);
void lse_to_stats(const CudaNative& native, const TensorView& lse, const StatsOrder& order,
                  const std::int32_t* query_segment, float* stats);
// lse[h, t] = -inf where query_segment says that the row sees nothing.
void clear_lse(const CudaNative& native, const std::int32_t* query_segment, const TensorView& lse);

// Rows of y where covered[row] < least become zero.
void clear_rows(const CudaNative& native, const TensorView& y, const std::int32_t* covered, std::int32_t min);
void clear(const CudaNative& native, const TensorView& y);

// The rows of x, bf16, that start at 16 bytes, one behind the other.
void pack_rows(const CudaNative& native, const TensorView& x, void* to);

// Rows at equal distances: entry e is rows [begin + e * step, + rows).
struct RowPlaces {
  std::int64_t entries = 1, begin = 0, rows = 0, step = 0;
};
// Rows of y outside the places become zero.
void clear_outside(const CudaNative& native, const TensorView& y, const RowPlaces& places);
// y (+)= partial, bf16 [rows of all places, columns of y] dense, in rows that count; other rows: y (+)= 0. A row counts
// where it is in a place and `covered` is at least `least`.
void add_partial(const CudaNative& native, const void* partial, const RowPlaces& places, const std::int32_t* covered,
                 std::int32_t min, bool accumulate, const TensorView& y);
// y (+)= the key gradients of segments [first, first + count) of the table, which lie at key_gradient_offsets.
void add_key_gradients(const CudaNative& native, const void* partial, const TensorView& segments,
                       const TablePointers& tables, std::int64_t first, std::int64_t count, bool accumulate,
                       const TensorView& y);

// Any dtypes, head dims and masks: a warp for each row of each head, keys (or queries) 32 at a time.
void plain_forward(const CudaNative& native, const AttentionForward& args, const std::int32_t* query_segment);
// delta: float32 [Hq, Tq], scratch.
void plain_backward(const CudaNative& native, const AttentionBackward& args, const std::int32_t* query_segment,
                    float* delta);

}  // namespace hawser::ops::cuda
