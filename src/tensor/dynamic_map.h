// `kSignedDynamicMap`, `kUnsignedDynamicMap`: the 256 values of bitsandbytes' codes of 8 bits, rising.
//
//   signed      -0.9929..., ..., -5.5e-7, 0, 5.5e-7, ..., 0.9929..., 1      code 127 is 0
//   unsigned    0, 3.25e-7, 7.75e-7, ..., 0.9964..., 1                      code 0 is 0
//
// The values of the decade [10^(d-1), 10^d], d = -6 to 0, are the centres of equal intervals: 2^(d+6) of them for each
// sign, or 2^(d+7) without a sign. So small magnitudes have small errors.
//
// Source: 8-bit Approximations for Parallelism in Deep Learning (arXiv 1511.04561), 8-bit Optimizers via Block-wise
// Quantization (arXiv 2110.02861). The bits are those of bitsandbytes 0.50.2 (functional.create_dynamic_map, with
// torch.linspace: one rounding for each boundary).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace hawser {

using DynamicMap = std::array<float, 256>;

constexpr DynamicMap make_dynamic_map(bool is_signed) {
  constexpr std::array<float, 7> kDecades = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1};
  DynamicMap map{};
  std::size_t count = 0;
  for (int decade = 0; decade < 7; ++decade) {
    const int intervals = is_signed ? 1 << decade : 2 << decade;
    const auto step = static_cast<double>((1.0f - 0.1f) / static_cast<float>(intervals));
    // From the nearer end of [0.1, 1].
    const auto boundary = [&](int i) {
      const bool lower = i < (intervals + 1) / 2;
      return static_cast<float>(lower ? static_cast<double>(0.1f) + step * i : 1.0 - step * (intervals - i));
    };
    for (int i = 0; i < intervals; ++i) {
      const float centre = (boundary(i) + boundary(i + 1)) / 2 * kDecades[static_cast<std::size_t>(decade)];
      map[count++] = centre;
      if (is_signed) map[count++] = -centre;
    }
  }
  map[count++] = 0;
  map[count++] = 1;
  std::sort(map.begin(), map.end());
  return map;
}
inline constexpr DynamicMap kSignedDynamicMap = make_dynamic_map(true), kUnsignedDynamicMap = make_dynamic_map(false);

// The code of the value nearest to x; of two as near, the lower one.
constexpr int dynamic_code(const DynamicMap& map, float x) {
  int code = 0;
  for (int step = 128; step > 0; step /= 2) {
    const auto next = static_cast<std::size_t>(code + step);
    if (next < map.size() && x > (map[next - 1] + map[next]) * 0.5f) code += step;
  }
  return code;
}

}  // namespace hawser
