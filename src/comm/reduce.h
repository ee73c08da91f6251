// The local half of a reduction: what arrived from the members, put together in their order.
#pragma once

#include <cstdint>
#include <span>

#include "comm/group.h"

namespace hawser::comm {

// out[k] (+)= r(... r(r(m0[k], m1[k]), m2[k]) ...) for n elements, in float32, rounded once when written. Members are
// `wire` (float32 or bf16), out is `out_dtype` (float32, or the wire). accumulate (sums only) adds the finished sum to
// out. A member may lie exactly at `out` when the dtypes are equal.
void reduce_members(std::span<const std::byte* const> members, DType wire, Reduction reduction, std::int64_t n,
                    std::byte* out, DType out_dtype, bool accumulate);

}  // namespace hawser::comm
