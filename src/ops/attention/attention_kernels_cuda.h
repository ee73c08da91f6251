// Helper and fallback kernels for cuDNN attention. All are deterministic.
#pragma once

#include "ops/attention/attention_memory.h"

namespace hawser::ops::cuda {

// Tables in the workspace, see SegmentTables. Tables that a call does not use are null.
struct TablePointers {
  std::int32_t* query_segment = nullptr;
  std::int32_t* key_covered = nullptr;
  std::int32_t* query_length = nullptr;
  std::int32_t* key_length = nullptr;
  std::int64_t* offsets = nullptr;  // [kOffsetTables, N + 1]
};

// Computes the tables. rows[t]: row stride in elements of tensor t of OffsetTable. A segment outside the tensors is
// reported (CudaFault) and treated as empty; so are all segments if their count is not in [0, N].
void make_tables(const CudaNative& native, const TensorView& segments, const TensorView& count, std::int64_t query_rows,
                 std::int64_t key_rows, const TablePointers& tables, const std::int64_t (&rows)[kOffsetTables]);

// Offsets in dk and dv of segments [first, first + count), whose gradients follow one another. row: row stride in
// elements.
void key_gradient_offsets(const CudaNative& native, const TensorView& segments, const TablePointers& tables,
                          std::int64_t first, std::int64_t count, std::int64_t row);

// Layout of the log-sum-exps of cuDNN calls: [blocks.count, heads, blocks.q_rows] for strided blocks, [T, heads] for
// ragged rows, starting at `base`. Groups of heads are `group` elements apart.
struct StatsOrder {
  std::int64_t heads = 0;  // of a group
  std::int64_t group = 0, base = 0;
  StridedBlocks blocks;  // count 0: ragged
};
// lse: rows may be padded.
// lse[h,t] = stats for the rows of `order`, -inf for rows that see no key (query_segment < 0). May be in place if the
// layouts are the same.
void stats_to_lse(const CudaNative& native, const float* stats, const StatsOrder& order,
                  const std::int32_t* query_segment, const TensorView& lse);
void lse_to_stats(const CudaNative& native, const TensorView& lse, const StatsOrder& order,
                  const std::int32_t* query_segment, float* stats);
// lse[h,t] = -inf for rows that see no key (query_segment < 0).
void clear_lse(const CudaNative& native, const std::int32_t* query_segment, const TensorView& lse);

// Zeroes the rows of y with covered[row] < min.
void clear_rows(const CudaNative& native, const TensorView& y, const std::int32_t* covered, std::int32_t min);
void clear(const CudaNative& native, const TensorView& y);

// Copies the rows of x (bf16, aligned to 16 bytes) to a dense buffer.
void pack_rows(const CudaNative& native, const TensorView& x, void* to);

// Blocks of rows at equal distances: block b is the `rows` rows from begin + b * step.
struct RowPlaces {
  std::int64_t count = 1, begin = 0, rows = 0, step = 0;
};
// Zeroes the rows of y outside the places.
void clear_outside(const CudaNative& native, const TensorView& y, const RowPlaces& places);
// y (+)= partial. partial: dense bf16 [rows of all places, columns of y]. It applies to rows that are in a place and
// have covered >= min; for other rows it counts as zero.
void add_partial(const CudaNative& native, const void* partial, const RowPlaces& places, const std::int32_t* covered,
                 std::int32_t min, bool accumulate, const TensorView& y);
// y (+)= the key gradients of segments [first, first + count) of the table, stored at key_gradient_offsets.
void add_key_gradients(const CudaNative& native, const void* partial, const TensorView& segments,
                       const TablePointers& tables, std::int64_t first, std::int64_t count, bool accumulate,
                       const TensorView& y);

// attention_combine. skip: rows with lse_b = -inf do not change, not even a zero's sign.
void combine(const CudaNative& native, const AttentionCombine& args, bool skip);

// The kernels of our own: the tiled one if attention_implementation would choose it, otherwise the plain one.
// delta: float32 [Hq, Tq], scratch.
void own_forward(const CudaNative& native, const AttentionCall& args, const std::int32_t* query_segment);
void own_backward(const CudaNative& native, const AttentionBackward& args, const std::int32_t* query_segment,
                  float* delta);

// Any dtypes, head dims and masks: one warp per row of each head, 32 keys (or queries) at a time.
void plain_forward(const CudaNative& native, const AttentionCall& args, const std::int32_t* query_segment);
void plain_backward(const CudaNative& native, const AttentionBackward& args, const std::int32_t* query_segment,
                    const float* delta);
// bf16 q, k, v and d_o with rows at multiples of 16 bytes, head dims that are multiples of 8: on tensor cores.
void tiled_forward(const CudaNative& native, const AttentionCall& args, const std::int32_t* query_segment);
void tiled_backward(const CudaNative& native, const AttentionBackward& args, const std::int32_t* query_segment,
                    const float* delta);

// delta[h,t] = sum over d of d_o[t,h,d] * o[t,h,d]
void attention_delta(const CudaNative& native, const AttentionBackward& args, float* delta);

}  // namespace hawser::ops::cuda
