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
  std::int64_t cudnn = -1, cudnn_bytes = 0;
  std::int64_t bytes = 0;
};
BackwardMemory backward_memory(const AttentionBackward& args, AttentionImplementation::Kernel kernel);

}  // namespace hawser::ops
