// `StochasticRounding`: how optimizers round weights and states to bf16.
//
// Example: 1 + 2^-9 lies a quarter of the way from 1 to the next bf16 number, 1 + 2^-7. It becomes 1 + 2^-7 with
// probability 1/4 and 1 otherwise, so that many small updates of a weight add up to what float32 has.
//
//   words = philox({global element, step}, key)
//   bf16(x) = (bits(x) + (words[i] & 0xffff)) >> 16      i: 0 for the weight, 1 and 2 for the states
//
// Infinities and NaN stay as they are. The random bits are a function of the seed, the tensor, the step and the element
// of the global tensor: a rank's mesh does not change them. Element i of a view is this element of the global tensor:
//
//   e = first + i;   element = e / part * whole + begin + e % part
//
// Source: Gupta et al., "Deep Learning with Limited Numerical Precision", 2015; philox: base/philox.h.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "base/philox.h"
#include "tensor/dtype_dispatch.h"
#include "tensor/tensor.h"

namespace hawser::ops {

// The random bits of the elements of a view.
struct RoundingNoise {
  PhiloxKey key = {};  // RandomStream(seed, name of the tensor).key()
  // Of a tensor that is not sliced, `part` and `whole` are its elements, and `begin` is 0.
  std::int64_t first = 0, part = 1, whole = 1, begin = 0;

  constexpr std::uint64_t element(std::int64_t i) const {
    const std::int64_t e = first + i;
    return static_cast<std::uint64_t>(e / part * whole + begin + e % part);
  }
  constexpr PhiloxWords words(std::int64_t i, std::int32_t of_step) const {
    const std::uint64_t at = element(i);
    return philox(
        {static_cast<std::uint32_t>(at), static_cast<std::uint32_t>(at >> 32), static_cast<std::uint32_t>(of_step), 0},
        key);
  }
};

struct StochasticRounding {
  RoundingNoise noise = {};
  TensorView step;  // int32 [1]: number of the step in the run. Empty: rounds to the nearest
};

// The bits of `x` in bf16; `noise`: of PhiloxWords.
constexpr std::uint16_t rounded_stochastically(float x, std::uint32_t noise) {
  const auto word = std::bit_cast<std::uint32_t>(x);
  const bool finite = (word & 0x7f800000u) != 0x7f800000u;
  const bool nan = !finite && (word & 0x007fffffu) != 0;
  if (nan) return static_cast<std::uint16_t>((word >> 16) | 0x40u);
  return static_cast<std::uint16_t>((finite ? word + (noise & 0xffffu) : word) >> 16);
}

}  // namespace hawser::ops
