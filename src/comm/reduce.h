// `reduce_members`: the local sum of a reduction, over the members' received parts in their order.
#pragma once

#include <cstdint>
#include <span>

#include "comm/group.h"

namespace hawser::comm {

// How a reduction of parts of n elements divides its workspace: one slot per peer for a chunk of its part, in member
// order without the own member. Two sets if there is more than one chunk, so that one is summed while the next arrives.
struct ReduceSlots {
  std::int64_t chunk = 0;  // elements
  std::int64_t slot = 0;   // bytes
  int sets = 1;
};
constexpr std::int64_t kSlotAlign = 64;  // keeps every slot aligned for any dtype and vector unit
ReduceSlots reduce_slots(std::int64_t n, DType reduce_dtype, int size, DeviceKind device);

// For n elements, with r = addition or max:
//   out[k] (+)= r(... r(r(m0[k], m1[k]), m2[k]) ...)
// Computed in float32, rounded once when written. Members are `reduce_dtype` (float32 or bf16), out is `out_dtype`
// (float32 or reduce_dtype). accumulate (sums only) adds the finished sum to out. A member may be exactly at `out` when
// the dtypes are equal.
void reduce_members(std::span<const std::byte* const> members, DType reduce_dtype, Reduction reduction, std::int64_t n,
                    std::byte* out, DType out_dtype, bool accumulate);

}  // namespace hawser::comm
