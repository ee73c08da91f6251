// `ScaleOf`: the scale of an amax, as in quantize.h. Internal to ops/quantize.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "ops/quantize/quantize.h"

namespace hawser::ops {

// The rule for one FP8 dtype. `over`: its largest value over 2^margin.
struct ScaleOf {
  float over = 1;
  bool power_of_two = false;

  constexpr float operator()(float amax) const {
    float scale = amax / over;
    if (power_of_two) {
      const auto bits = std::bit_cast<std::uint32_t>(scale);
      scale = std::bit_cast<float>((bits + 0x7fffffu) & 0xff800000u);
    }
    return scale > 0x1p-126f ? scale : 0x1p-126f;
  }
};

inline ScaleOf scale_of(DType dtype, const ScaleRule& rule) {
  return {std::ldexp(largest_fp8(dtype), -rule.margin), rule.power_of_two};
}

}  // namespace hawser::ops
