// The local half of a reduction on a GPU: comm/reduce.h's sums, bit for bit. Readable without CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/group.h"

namespace hawser::comm {

// Where the members' runs of elements lie: the own one apart, the others `stride` bytes from one another.
struct MemberRuns {
  const std::byte* own = nullptr;
  int index = 0;  // the own member's
  int count = 1;
  const std::byte* others = nullptr;
  std::int64_t stride = 0;
  bool own_place = false;  // the others leave the own one's place free: member m lies at others + m * stride
};

// Enqueues reduce_members(runs, ...) on a cudaStream_t. Any alignment; runs and out at multiples of 16 bytes are fast.
void reduce_members_cuda(void* stream, int sm_count, const MemberRuns& runs, DType reduce_dtype, Reduction reduction,
                         std::int64_t n, std::byte* out, DType out_dtype, bool accumulate);

}  // namespace hawser::comm
