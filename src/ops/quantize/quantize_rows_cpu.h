// What the CPU's ops that write an Fp8Output share.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/cpu/parallel.h"
#include "ops/quantize/fp8_output.h"
#include "tensor/fp8.h"

namespace hawser::ops::cpu {

// Absolute values that are no NaN compare as their bits do, and NaNs are above all of them.
inline std::uint32_t size_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu;
}
inline float of_size_bits(std::uint32_t bits) {
  return bits > 0x7f800000u ? std::numeric_limits<float>::quiet_NaN() : std::bit_cast<float>(bits);
}

// The largest size_bits of elements.
template <class X>
std::uint32_t largest_bits(const X* x, std::int64_t count) {
  std::uint32_t found = 0;
  for (std::int64_t i = 0; i < count; ++i) found = std::max(found, size_bits(static_cast<float>(x[i])));
  return found;
}

// Raises an amax, which other threads may raise at the same time, to the value of size_bits.
inline void take_maximum(float& amax, std::uint32_t bits) {
  const float largest = of_size_bits(bits);
  const std::atomic_ref<float> shared(amax);
  float now = shared.load();
  while (size_bits(now) < size_bits(largest) && !shared.compare_exchange_weak(now, largest)) {
  }
}

inline bool counts(const TensorView& mask, std::int64_t row) {
  return mask.empty() || mask.data<std::int32_t>()[row] != 0;
}

// min(rows, row_count).
inline std::int64_t counted_rows(const TensorView& row_count, std::int64_t rows) {
  return row_count.empty() ? rows : std::clamp<std::int64_t>(*row_count.data<std::int32_t>(), 0, rows);
}

class Maximum {
 public:
  void take(std::uint32_t bits) {
    std::uint32_t now = bits_.load();
    while (now < bits && !bits_.compare_exchange_weak(now, bits)) {
    }
  }
  std::uint32_t bits() const { return bits_; }

 private:
  std::atomic<std::uint32_t> bits_ = 0;
};

// `row(t, buffer)` returns row t, of `columns` elements of X; it may write them to the buffer, which has
// `capacity` elements.
template <class X, class Q, class Row>
void quantize_rows(std::int64_t rows, std::int64_t columns, std::int64_t capacity, const Fp8Output& to,
                   const Row& row) {
  constexpr std::int64_t kRows = 64;  // of a piece: its part of `transposed` is written in runs of this length
  const std::int64_t count = counted_rows(to.row_count, rows);
  const float inverse = 1.0f / *to.scale.data<float>();
  Q* const q = to.q.empty() ? nullptr : to.q.data<Q>();
  Q* const transposed = to.transposed.empty() ? nullptr : to.transposed.data<Q>();
  Maximum largest;
  std::atomic<std::int64_t> saturated = 0;
  parallel_items(ceil_div(count, kRows), [&](std::int64_t item) {
    const std::int64_t begin = item * kRows, end = std::min(count, begin + kRows);
    std::vector<Q> tile(static_cast<std::size_t>((end - begin) * columns));
    std::vector<X> buffer(static_cast<std::size_t>(capacity));
    std::uint32_t found = 0;
    std::int64_t beyond = 0;
    for (std::int64_t t = begin; t < end; ++t) {
      Q* const at = tile.data() + (t - begin) * columns;
      const X* const from = row(t, buffer.data());
      const bool counted = counts(to.mask, t);
      for (std::int64_t c = 0; c < columns; ++c) {
        const auto value = static_cast<float>(from[c]);
        const float scaled = value * inverse;
        at[c] = Q(scaled);
        if (!counted) continue;
        found = std::max(found, size_bits(value));
        beyond += std::abs(scaled) <= Q::largest() ? 0 : 1;
      }
    }
    if (q != nullptr) std::copy(tile.begin(), tile.end(), q + begin * columns);
    for (std::int64_t c = 0; transposed != nullptr && c < columns; ++c) {
      for (std::int64_t t = begin; t < end; ++t) {
        transposed[c * rows + t] = tile[static_cast<std::size_t>((t - begin) * columns + c)];
      }
    }
    largest.take(found);
    saturated += beyond;
  });
  if (!to.used.empty()) *to.used.data<float>() = *to.scale.data<float>();
  if (!to.amax.empty()) {
    float& amax = *to.amax.data<float>();
    amax = of_size_bits(std::max(size_bits(amax), largest.bits()));
  }
  if (!to.saturated.empty()) {
    *to.saturated.data<float>() += static_cast<float>(saturated);
  }
}

}  // namespace hawser::ops::cpu
