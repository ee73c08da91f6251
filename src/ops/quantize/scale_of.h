// `scale_of`: the scale of an amax, as in quantize.h. Internal to ops/quantize.
#pragma once

#include <cmath>

#include "tensor/fp8.h"

namespace hawser::ops {

// `largest_over`: the largest FP8 value over 2^margin.
constexpr float scale_of(float amax, float largest_over) {
  const float scale = amax / largest_over;
  return scale > 0x1p-126f ? scale : 0x1p-126f;
}

inline float largest_over(DType dtype, int margin) {
  return std::ldexp(largest_fp8(dtype), -margin);
}

}  // namespace hawser::ops
