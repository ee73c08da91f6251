// `nearest_code`: the code of 8 bits for a number, in one of the maps of tensor/dynamic_map.h.
#pragma once

#include <cstdint>

#include "tensor/dynamic_map.h"

namespace hawser::ops {

// The code of the number nearest to `x`, of two the lower one; `x` in [-1, 1]. NaN has code 0.
constexpr std::uint8_t nearest_code(const float* book, float x) {
  int low = 0, high = 255;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (x > book[middle] ? low : high) = middle;
  }
  const float below = x - book[low], above = x - book[high];
  return static_cast<std::uint8_t>((below < 0 ? -below : below) <= (above < 0 ? -above : above) ? low : high);
}

}  // namespace hawser::ops
