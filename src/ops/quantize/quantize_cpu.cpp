#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <vector>

#include "ops/cpu/parallel.h"
#include "ops/quantize/quantize.h"
#include "ops/quantize/scale_of.h"

namespace hawser::ops::cpu {

namespace {

constexpr std::int64_t kRows = 64;  // of a piece: its part of `transposed` is written in runs of this length

// Absolute values that are no NaN compare as their bits do, and NaNs are above all of them.
std::uint32_t size_bits(float value) {
  return std::bit_cast<std::uint32_t>(value) & 0x7fffffffu;
}
float of_bits(std::uint32_t bits) {
  return bits > 0x7f800000u ? std::numeric_limits<float>::quiet_NaN() : std::bit_cast<float>(bits);
}

bool counts(const TensorView& mask, std::int64_t row) {
  return mask.empty() || mask.data<std::int32_t>()[row] != 0;
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

template <class X, class Q>
void quantize_rows(const Quantize& args) {
  const auto x = rows_of<X>(args.x);
  const float inverse = 1.0f / *args.scale.data<float>();
  Q* const q = args.q.empty() ? nullptr : args.q.data<Q>();
  Q* const transposed = args.transposed.empty() ? nullptr : args.transposed.data<Q>();
  Maximum largest;
  std::atomic<std::int64_t> saturated = 0;
  parallel_items(ceil_div(x.count, kRows), [&](std::int64_t item) {
    const std::int64_t begin = item * kRows, end = std::min(x.count, begin + kRows);
    std::vector<Q> tile(static_cast<std::size_t>((end - begin) * x.columns));
    std::uint32_t found = 0;
    std::int64_t beyond = 0;
    for (std::int64_t t = begin; t < end; ++t) {
      Q* const to = tile.data() + (t - begin) * x.columns;
      const bool counted = counts(args.mask, t);
      for (std::int64_t c = 0; c < x.columns; ++c) {
        const auto value = static_cast<float>(x.row(t)[c]);
        const float scaled = value * inverse;
        to[c] = Q(scaled);
        if (!counted) continue;
        found = std::max(found, size_bits(value));
        beyond += std::abs(scaled) <= Q::largest() ? 0 : 1;
      }
    }
    if (q != nullptr) std::copy(tile.begin(), tile.end(), q + begin * x.columns);
    for (std::int64_t c = 0; transposed != nullptr && c < x.columns; ++c) {
      for (std::int64_t t = begin; t < end; ++t) {
        transposed[c * x.count + t] = tile[static_cast<std::size_t>((t - begin) * x.columns + c)];
      }
    }
    largest.take(found);
    saturated += beyond;
  });
  if (!args.used.empty()) *args.used.data<float>() = *args.scale.data<float>();
  if (!args.amax.empty()) {
    float& amax = *args.amax.data<float>();
    amax = of_bits(std::max(size_bits(amax), largest.bits()));
  }
  if (!args.saturated.empty()) {
    *args.saturated.data<float>() += static_cast<float>(saturated);
  }
}

}  // namespace

void quantize(const Quantize& args) {
  dispatch_float(args.x.dtype(), [&](auto x_tag) {
    dispatch_fp8((args.q.empty() ? args.transposed : args.q).dtype(),
                 [&](auto q_tag) { quantize_rows<decltype(x_tag), decltype(q_tag)>(args); });
  });
}

void dequantize(const Dequantize& args) {
  const float scale = *args.scale.data<float>();
  dispatch_fp8(args.q.dtype(), [&](auto q_tag) {
    dispatch_float(args.y.dtype(), [&](auto y_tag) {
      using Y = decltype(y_tag);
      const auto* const q = args.q.data<decltype(q_tag)>();
      auto* const y = args.y.data<Y>();
      parallel_pieces(args.q.elements(), 4096, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) y[i] = static_cast<Y>(scale * static_cast<float>(q[i]));
      });
    });
  });
}

void amax(const Amax& args) {
  Maximum largest;
  dispatch_float(args.x.dtype(), [&](auto tag) {
    using X = decltype(tag);
    const bool vector = args.x.rank() == 1;
    const auto x = vector ? RowsOf<X>{args.x.data<X>(), 1, args.x.elements(), 0} : rows_of<X>(args.x);
    parallel_pieces(vector ? x.columns : x.count, vector ? 4096 : 16, [&](std::int64_t begin, std::int64_t end) {
      std::uint32_t found = 0;
      for (std::int64_t i = begin; i < end; ++i) {
        if (!counts(args.mask, i)) continue;
        const X* const from = vector ? x.data + i : x.row(i);
        for (std::int64_t c = 0; c < (vector ? 1 : x.columns); ++c) {
          found = std::max(found, size_bits(static_cast<float>(from[c])));
        }
      }
      largest.take(found);
    });
  });
  float& out = *args.out.data<float>();
  out = of_bits(std::max(args.accumulate ? size_bits(out) : 0, largest.bits()));
}

void scales_of_amaxes(const ScalesOfAmaxes& args) {
  const ScaleOf of = scale_of(args.dtype, args.rule);
  for (std::int64_t i = 0; i < args.amax.elements(); ++i) {
    const float amax = args.amax.data<float>()[i];
    float& scale = args.scales.data<float>()[i];
    if (std::isfinite(amax) && amax != 0) {
      scale = of(amax);
    } else if (args.otherwise) {
      scale = *args.otherwise;
    }
  }
}

void delayed_scales(const DelayedScales& args) {
  if (const std::int32_t skip = *args.skip.data<std::int32_t>(); skip != 0 && skip != args.refreshes) return;
  const ScaleOf of_x = scale_of(DType::f8e4m3, args.rule), of_dy = scale_of(DType::f8e5m2, args.rule);
  const std::int64_t length = args.history.size(1);
  for (std::int64_t i = 0; i < args.history.size(0); ++i) {
    const float amax = args.amax.data<float>()[i];
    if (!std::isfinite(amax) || amax == 0) continue;
    float* const history = args.history.rows(i, 1).data<float>();
    std::copy_backward(history, history + length - 1, history + length);
    history[0] = amax;
    const float from = args.most_recent ? amax : *std::max_element(history, history + length);
    args.scales.data<float>()[i] = (i % 2 == 0 ? of_x : of_dy)(from);
  }
}

}  // namespace hawser::ops::cpu
