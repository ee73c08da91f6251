// `Nf4Block`: 64 weights in NF4, the 4-bit NormalFloat of QLoRA (arXiv 2305.14314), with one float32 scale. It is the
// element of views of DType::nf4.
//
//   scale = max |w[i]|       w[i] is about scale * kNf4Values[code of i]
//   code of i: that of the level nearest to w[i] / scale, rounded to float32 first; of two as near, the lower one
//
// Of a block of zeros, and of one with a value that is not finite, all codes are that of 0, and the scale of the latter
// is NaN: so are all its weights. The codes are in the order of bitsandbytes: of a byte, the upper four bits are the
// weight with the lower index. All devices have the same bits.
#pragma once

#include <array>

#include "tensor/dtype.h"

namespace hawser {

constexpr int kNf4Levels = 16;
constexpr int kNf4Zero = 7;  // the code of 0

// Quantiles of the normal distribution, divided by the largest: rising, from -1 to 1, with an exact 0. As published.
inline constexpr std::array<float, kNf4Levels> kNf4Values = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

// Bound i is between levels i and i + 1: a value above it has a code above i.
constexpr std::array<float, kNf4Levels - 1> make_nf4_bounds() {
  std::array<float, kNf4Levels - 1> bounds{};
  for (std::size_t i = 0; i < bounds.size(); ++i) bounds[i] = (kNf4Values[i] + kNf4Values[i + 1]) * 0.5f;
  return bounds;
}
inline constexpr std::array<float, kNf4Levels - 1> kNf4Bounds = make_nf4_bounds();

struct Nf4Block {
  float scale = 0;
  std::array<std::uint8_t, kNf4Block / 2> codes{};
};
static_assert(sizeof(Nf4Block) == size_of(DType::nf4));

template <>
constexpr DType dtype_of<Nf4Block>() {
  return DType::nf4;
}

}  // namespace hawser
