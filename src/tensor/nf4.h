// `Nf4Block`, `Nf4DoubleBlock`: 64 weights in NF4, the 4-bit NormalFloat of QLoRA (arXiv 2305.14314). They are the
// elements of views of DType::nf4 and DType::nf4_double.
//
//   scale = max |w[i]|       w[i] is about scale * kNf4Values[code of i]
//   code of i: that of the level nearest to w[i] * (1 / scale), rounded to float32 twice; of two as near, the lower one
//
// Example: 64 weights of which the largest is 0.5 have scale 0.5. A weight of 0.12 is 0.24 of it, and has the code 10 of
// the level 0.2461: it becomes 0.1231.
//
// Of a block of zeros, or of values below the smallest normal float32, the scale is 0 and all codes are 0. Of one with a
// value that is not finite, the codes are those of 0, and the scale is NaN: so are all its weights. The codes are in the
// order of bitsandbytes: of a byte, the upper four bits are the weight with the lower index. All devices have the same
// bits.
//
// Double quantization stores the scale of a block in 8 bits. 256 blocks of a tensor that follow each other are a group:
//
//   mean         of the scales of all blocks of the tensor, summed in float64
//   group scale  max |scale - mean| in the group
//   code         that of the value of kSignedDynamicMap nearest to (scale - mean) * (1 / group scale)
//   scale        = kSignedDynamicMap[code] * group scale + mean, rounded to float32 after each operation
//
// Groups and mean are the whole tensor's, on every mesh. Source: bitsandbytes 0.50.2, its CUDA kernels. They round
// 1 / scale in another way, by at most the last bit.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/dynamic_map.h"

namespace hawser {

constexpr int kNf4Levels = 16;
constexpr int kNf4Zero = 7;                    // the code of 0
constexpr std::int64_t kNf4GroupBlocks = 256;  // blocks of a group

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

// Bound i is the middle of levels i and i + 1, rounded as in bitsandbytes' CUDA kernels: a value above it has a code
// above i. Of some, float32 has no nearest number, and the middle in float32 arithmetic is the one beside it.
inline constexpr std::array<float, kNf4Levels - 1> kNf4Bounds = {
    -0.8480964004993439f,  -0.6106329262256622f,   -0.4599952697753906f, -0.33967943489551544f, -0.23460740596055984f,
    -0.13791173696517944f, -0.045525018125772476f, 0.03979014977812767f, 0.1202552504837513f,   0.2035212516784668f,
    0.2920137718319893f,   0.3893125355243683f,    0.5016634166240692f,  0.6427869200706482f,   0.8614784181118011f,
};

struct Nf4Block {
  float scale = 0;
  std::array<std::uint8_t, kNf4Block / 2> codes{};
};
static_assert(sizeof(Nf4Block) == size_of(DType::nf4));

struct Nf4DoubleBlock {
  std::uint8_t scale = 0;  // a code of kSignedDynamicMap
  std::array<std::uint8_t, kNf4Block / 2> codes{};
};
static_assert(sizeof(Nf4DoubleBlock) == size_of(DType::nf4_double));

// What the scales of a group are stored with.
struct Nf4Group {
  float scale = 0, mean = 0;

  float value(std::uint8_t code) const { return kSignedDynamicMap[code] * scale + mean; }
  // Without a scale all codes have the same value.
  std::uint8_t code(float block_scale) const {
    if (scale == 0) return 0;
    return static_cast<std::uint8_t>(dynamic_code(kSignedDynamicMap, (block_scale - mean) * (1 / scale)));
  }
};
static_assert(sizeof(Nf4Group) == 8);

// The groups of a tensor whose blocks have these scales; the last may have fewer blocks.
std::vector<Nf4Group> nf4_groups(std::span<const float> scales);

template <>
constexpr DType dtype_of<Nf4Block>() {
  return DType::nf4;
}
template <>
constexpr DType dtype_of<Nf4DoubleBlock>() {
  return DType::nf4_double;
}

}  // namespace hawser
