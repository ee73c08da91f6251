// reduce_members_cuda: the local sum of a reduction on a GPU; same bits as reduce_members (comm/reduce.h). This header
// needs no CUDA headers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/group.h"

namespace hawser::comm {

// The members' buffers. The own member's is separate; those of the others are `stride` bytes apart.
struct MemberRuns {
  const std::byte* own = nullptr;
  int index = 0;  // of the own member
  int count = 1;
  const std::byte* others = nullptr;
  std::int64_t stride = 0;
  bool own_place = false;  // `others` has a slot for the own member too: member m is at others + m * stride
};

// Enqueues reduce_members(runs, ...) on a cudaStream_t. Any alignment works; 16-byte aligned runs and out are fast.
void reduce_members_cuda(void* stream, int sm_count, const MemberRuns& runs, DType reduce_dtype, Reduction reduction,
                         std::int64_t n, std::byte* out, DType out_dtype, bool accumulate);

}  // namespace hawser::comm
