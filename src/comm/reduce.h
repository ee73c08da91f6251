// The local half of a reduction: what arrived from the members, put together in their order.
#pragma once

#include <cstdint>
#include <span>

#include "comm/group.h"

namespace hawser::comm {

// How a reduction of parts of n elements cuts its workspace: one slot a peer for a chunk of its part, in the order of
// the members without this one; two sets when there are more chunks, so that the sum of one runs while the next
// arrives.
struct ReduceSlots {
  std::int64_t chunk = 0;  // elements
  std::int64_t slot = 0;   // bytes
  int sets = 1;
};
constexpr std::int64_t kSlotAlign = 64;  // keeps every slot aligned for any dtype and vector unit
ReduceSlots reduce_slots(std::int64_t n, DType reduce_dtype, int size, DeviceKind device);

// out[k] (+)= r(... r(r(m0[k], m1[k]), m2[k]) ...) for n elements, in float32, rounded once when written. Members are
// `reduce_dtype` (float32 or bf16), out is `out_dtype` (float32, or the wire). accumulate (sums only) adds the finished sum to
// out. A member may lie exactly at `out` when the dtypes are equal.
void reduce_members(std::span<const std::byte* const> members, DType reduce_dtype, Reduction reduction, std::int64_t n,
                    std::byte* out, DType out_dtype, bool accumulate);

}  // namespace hawser::comm
