// `kSignedDynamicMap`: the 256 values of bitsandbytes' codes of 8 bits, rising, from about -1 to 1.
//
//   kSignedDynamicMap[0] = -0.99296874   kSignedDynamicMap[127] = 0   kSignedDynamicMap[255] = 1
//
// A decade 10^-6 ... 10^0 has 1, 2, 4, ... 64 values of each sign, with equal distances between a tenth of it and all of
// it: small magnitudes have small errors, and each value has 8 bits. The code of x is that of the nearest value.
//
// Source: 8-bit Approximations for Parallelism in Deep Learning (arXiv 1511.04561), 8-bit Optimizers via Block-wise
// Quantization (arXiv 2110.02861). The bits are those of bitsandbytes, which computes the values with torch.linspace.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

namespace hawser {

using DynamicMap = std::array<float, 256>;

constexpr DynamicMap make_signed_dynamic_map() {
  constexpr int kDecades = 7;
  constexpr std::array<float, kDecades> kScales = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1};
  DynamicMap map{};
  std::size_t count = 0;
  for (int decade = 0; decade < kDecades; ++decade) {
    const int parts = 1 << decade;
    // Bound i of `parts` equal parts of [0.1, 1], from the nearer end, rounded once.
    const auto bound = [&](int i) {
      const double step = static_cast<double>((1.0f - 0.1f) / static_cast<float>(parts));
      return static_cast<float>(i < (parts + 1) / 2 ? static_cast<double>(0.1f) + step * i : 1.0 - step * (parts - i));
    };
    for (int i = 0; i < parts; ++i) {
      const float value = kScales[static_cast<std::size_t>(decade)] * ((bound(i) + bound(i + 1)) / 2);
      map[count++] = value;
      map[count++] = -value;
    }
  }
  map[count++] = 0;
  map[count++] = 1;
  std::sort(map.begin(), map.end());
  return map;
}
inline constexpr DynamicMap kSignedDynamicMap = make_signed_dynamic_map();

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
