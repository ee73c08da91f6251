// `dynamic_code_book`: the numbers of the 256 codes of 8 bits, in ascending order; the largest is 1.
//
//   dynamic_code_book(true)    -0.9929..., ..., -5.5e-7, 0, 5.5e-7, ..., 0.9929..., 1      code 127 is 0
//   dynamic_code_book(false)   0, 3.25e-7, 7.75e-7, ..., 0.9964..., 1                      code 0 is 0
//
// The numbers of the decade [10^(d-1), 10^d], d = -6 to 0, are the centres of equal intervals: 2^(d+6) of them for each
// sign, or 2^(d+7) without a sign. So small numbers have few digits, and large ones many.
//
// Source: Dettmers, "8-Bit Approximations for Parallelism in Deep Learning", 2016; bitsandbytes 0.50.2,
// functional.create_dynamic_map, whose bits these are (torch.linspace: one rounding for each boundary).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace hawser::ops {

using CodeBook = std::array<float, 256>;

constexpr CodeBook dynamic_code_book(bool is_signed) {
  constexpr float kDecades[] = {1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f, 1.0f};
  constexpr float kStart = 0.1f;
  CodeBook book{};
  std::size_t at = 0;
  for (int decade = 0; decade < 7; ++decade) {
    const int intervals = is_signed ? 1 << decade : 2 << decade;
    const float step = (1.0f - kStart) / static_cast<float>(intervals);
    const auto boundary = [&](int i) {
      return i < (intervals + 1) / 2 ? static_cast<float>(double{kStart} + double{step} * i)
                                     : static_cast<float>(1.0 - double{step} * (intervals - i));
    };
    for (int i = 0; i < intervals; ++i) {
      const float centre = (boundary(i) + boundary(i + 1)) / 2.0f * kDecades[decade];
      book[at++] = centre;
      if (is_signed) book[at++] = -centre;
    }
  }
  book[at++] = 0.0f;
  book[at++] = 1.0f;
  std::sort(book.begin(), book.end());
  return book;
}
inline constexpr CodeBook kSignedCodes = dynamic_code_book(true), kUnsignedCodes = dynamic_code_book(false);

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
