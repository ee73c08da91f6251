// Where things lie in the workspace of the CUDA backend of attention, and with which sizes cuDNN is called. No CUDA
// header: the plan asks for the bytes on machines without a GPU.
#pragma once

#include "ops/attention/attention.h"

namespace hawser::ops {

// What every form of a call shares.
struct AttentionDims {
  std::int64_t tq, tk, hq, hkv, d, segments;
  std::int64_t group() const { return hq / hkv; }
};
AttentionDims dims_of(const AttentionForward& args);
AttentionDims dims_of(const AttentionBackward& args);

// What the host knows of the segments of a call.
struct SegmentBound {
  bool known = false;                   // from host_segments; else from shapes
  std::int64_t segments = 0;            // that count, at most
  std::int64_t q_rows = 0, k_rows = 0;  // of one, at most
  std::int64_t keys = 0;                // of all together, at most
};
SegmentBound bound_of(const AttentionForward& args);
SegmentBound bound_of(const AttentionBackward& args);

// Offsets in the workspace; those of what a form does not use are -1.
struct SegmentTables {
  // int32 [Tq]: the segment that lets the row see a key, -1 for none. int32 [Tk]: 1 where a query sees the row, else 0.
  std::int64_t query_segment = -1, key_covered = -1;
  // cuDNN: int32 [N] each, and int64 [N + 1] for each of kOffsetTables tensors: first elements, which depend on the
  // tensor's row stride. Segments without a pair have length 0.
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

// Log-sum-exps of a batch begin at multiples of so many elements.
constexpr std::int64_t kStatsAlign = 64;

struct ForwardMemory {
  SegmentTables tables;
  std::int64_t stats = -1;  // float32: cuDNN's log-sum-exp where its order is not that of `lse`
  std::int64_t cudnn = -1, cudnn_bytes = 0;
  std::int64_t bytes = 0;
};
ForwardMemory forward_memory(const AttentionForward& args, AttentionImplementation::Kernel kernel);

struct BackwardMemory {
  SegmentTables tables;
  std::int64_t kv_heads = 0;  // of one cuDNN call: groups of heads bound its workspace
  std::int64_t stats = -1;    // as above, for all groups of heads, stats_group elements apart
  std::int64_t stats_group = 0;
  std::int64_t delta = -1;  // float32 [Hq, Tq]: plain kernel
  // bf16 [T, heads of a call, D]: a copy of q where cuDNN cannot read it in place, and what cuDNN gives where it cannot
  // write the gradient itself.
  std::int64_t q = -1, dq = -1, dk = -1, dv = -1;
  std::int64_t keys = 0;  // rows of dk and dv; segments that share keys: a call takes no more than these
  std::int64_t cudnn = -1, cudnn_bytes = 0;
  std::int64_t bytes = 0;
};
// `most`: bytes that there are, once there are. Segments that share keys are then planned for those of `bound`.
BackwardMemory backward_memory(const AttentionBackward& args, AttentionImplementation::Kernel kernel,
                               std::int64_t max = 0);

// What a plan of cuDNN is made for, so that few serve many batches: the power of two above, at most `most`.
std::int64_t rounded_size(std::int64_t size, std::int64_t min, std::int64_t max);

}  // namespace hawser::ops
