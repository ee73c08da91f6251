// Workspace layout of attention's CUDA backend, and the sizes of its cuDNN calls. Does not include CUDA headers: the
// planner uses it on machines without a GPU.
#pragma once

#include "ops/attention/attention.h"

namespace hawser::ops {

// Sizes common to all kernels.
struct AttentionDims {
  std::int64_t tq, tk, hq, hkv, d, segments;
  std::int64_t group() const { return hq / hkv; }
};
AttentionDims dims_of(const AttentionCall& call);

// The call that computes what `call` merges into its o and lse (AttentionCall::accumulate): o is dense, in q's dtype.
// part_o, part_lse: where it writes; null if only the sizes matter.
AttentionCall partial_call(const AttentionCall& call, std::byte* part_o = nullptr, std::byte* part_lse = nullptr);

// Upper bounds on the segments of a call, known to the host.
struct SegmentBound {
  bool known = false;                   // from host_segments; otherwise from shapes
  std::int64_t segments = 0;            // number of used segments
  std::int64_t q_rows = 0, k_rows = 0;  // of one segment
  std::int64_t keys = 0;                // of all segments together
};
SegmentBound bound_of(const AttentionCall& call);

// Rows [begin, begin + used) of the segment table, whose segments have one mask; the rows after them, up to `end`, are
// unused or other rows of the same mask. `window`: of a mask whose diagonal starts at the first query and first key of
// each segment; 0: no window.
struct MaskedRows {
  std::int64_t begin, used, end, window;
};
// The parts of the table that need a cuDNN call each: the complete table, or its halves (AttentionCall::window_halves)
// as far as they have segments.
std::vector<MaskedRows> masked_rows(const AttentionCall& call, const SegmentBound& bound);

// Offsets in the workspace; -1 for tables that a kernel does not use.
struct SegmentTables {
  // query_segment, int32 [Tq]: the segment that covers the row and has keys; -1 for none. key_covered, int32 [Tk]: 1 if
  // a segment with queries covers the row, otherwise 0.
  std::int64_t query_segment = -1, key_covered = -1;
  // For cuDNN. Lengths: int32 [N] each, 0 for segments without a pair. Offsets: int64 [N + 1] for each of kOffsetTables
  // tensors, in elements; they depend on the tensor's row stride.
  std::int64_t query_length = -1, key_length = -1, offsets = -1;
};
enum OffsetTable {
  kOffsetQ,
  kOffsetK,
  kOffsetV,
  kOffsetO,
  kOffsetStats,
  kOffsetDo,
  kOffsetDq,
  kOffsetDkv,
  kOffsetTables
};

// Alignment, in elements, of the log-sum-exps of each StridedBlocks.
constexpr std::int64_t kStatsAlign = 64;

struct ForwardMemory {
  SegmentTables tables;
  std::int64_t stats = -1;  // float32: cuDNN's log-sum-exp, if its layout differs from `lse`
  std::int64_t cudnn = -1, cudnn_bytes = 0;
  std::int64_t part_o = -1, part_lse = -1;  // AttentionCall::accumulate: o and lse of partial_call()
  std::int64_t bytes = 0;
};
ForwardMemory forward_memory(const AttentionCall& call, AttentionImplementation::Kernel kernel);

struct BackwardMemory {
  SegmentTables tables;
  std::int64_t kv_heads = 0;  // of one cuDNN call; processing groups of heads limits its workspace
  std::int64_t stats = -1;    // as above, for all groups of heads, stats_group elements apart
  std::int64_t stats_group = 0;
  std::int64_t delta = -1;  // float32 [Hq, Tq], for our own kernels
  // bf16 [T, heads of a call, D]: a copy of q if cuDNN cannot read it in place, and cuDNN's gradients if it cannot
  // write the output in place.
  std::int64_t q = -1, dq = -1, dk = -1, dv = -1;
  std::int64_t keys = 0;  // rows of dk and dv; for segments that share keys, the maximum per call
  std::int64_t cudnn = -1, cudnn_bytes = 0;
  std::int64_t bytes = 0;
};
// max: bytes available, if known (0: unknown). Segments that share keys are then planned for the keys of SegmentBound.
BackwardMemory backward_memory(const AttentionBackward& args, AttentionImplementation::Kernel kernel,
                               std::int64_t max = 0);

// Whether the tiled kernel computes a call that cuDNN does not; `rows`: what it reads.
bool takes_tiles(const AttentionCall& call, std::initializer_list<TensorView> rows);

// The size that a cuDNN plan is built for: `min`, doubled until it is at least `size`; at most `max`. So few plans
// serve many micro-batches.
std::int64_t rounded_size(std::int64_t size, std::int64_t min, std::int64_t max);

}  // namespace hawser::ops
