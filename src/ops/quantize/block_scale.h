// `BlockScale`: the scale of a block from the bits of its amax, as in quantize_blocks.h. Internal to ops/quantize.
#pragma once

#include "ops/quantize/scale_of.h"

namespace hawser::ops {

struct BlockScale {
  ScaleOf of;

  // amax_bits: of an absolute value
  constexpr float operator()(std::uint32_t amax_bits) const {
    if (amax_bits == 0) return 1.0f;
    if (amax_bits >= 0x7f800000u) return std::bit_cast<float>(0x7fc00000u);
    return of(std::bit_cast<float>(amax_bits));
  }
};

}  // namespace hawser::ops
