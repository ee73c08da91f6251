// `DelayedScaling`: a quantizer on the CPU, for tests. Values are rounded to those of E4M3 and kept in the dtype of the
// matrix; the scale of x and dy follows from the amaxes of four steps, that of a weight from the weight.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>

#include "nn/flat.h"
#include "nn/layer.h"
#include "step/step_record.h"
#include "tensor/dtype_dispatch.h"

namespace hawser::testing {

constexpr float kLargestE4m3 = 448;

// The values of E4M3 from 0 up, by code: 7 subnormals, then 8 for each exponent; the last code would be NaN.
inline const std::array<float, 127>& e4m3_values() {
  static const auto values = [] {
    std::array<float, 127> out{};
    for (int code = 0; code < 127; ++code) {
      const int exponent = code / 8, mantissa = code % 8;
      out[static_cast<std::size_t>(code)] = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                                          : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    }
    return out;
  }();
  return values;
}

// The nearest value of E4M3, of two equally near ones that with an even code; the largest one for all beyond it.
inline float to_e4m3(float value) {
  if (std::isnan(value)) return value;
  const auto& values = e4m3_values();
  const float size = std::min(std::abs(value), kLargestE4m3);
  const auto above = std::lower_bound(values.begin(), values.end(), size);
  auto code = static_cast<std::size_t>(above - values.begin());
  if (code > 0 && values[code] != size) {
    const float down = size - values[code - 1], up = values[code] - size;
    if (down < up || (down == up && (code - 1) % 2 == 0)) --code;
  }
  return std::copysign(values[code], value);
}

// The maximum of absolute values; NaN if one is NaN.
inline float join_amax(float amax, float value) {
  const float size = std::abs(value);
  return std::isnan(amax) || std::isnan(size) ? std::numeric_limits<float>::quiet_NaN() : std::max(amax, size);
}

class DelayedScaling : public nn::Quantizer {
 public:
  struct Settings {
    bool powers_of_two = true;  // scales
    bool replays = false;       // saturated values skip their step, which must then run again
  };
  explicit DelayedScaling(const Settings& settings) : settings_(settings) {}
  DelayedScaling() : DelayedScaling(Settings{}) {}

  std::int64_t history() const override { return 4; }
  std::int64_t recorded() const { return recorded_; }  // matrices whose amax was recorded, on this rank

  // The scale with which `amax` becomes at most the largest value; `scale` if there is none.
  float scale_of(float amax, float scale) const {
    if (!std::isfinite(amax) || amax == 0) return scale;
    const float exact = amax / kLargestE4m3;
    return settings_.powers_of_two ? std::exp2(std::ceil(std::log2(exact))) : exact;
  }

  nn::Scaled quantize(nn::LayerContext& ctx, const nn::Quantization& how, const TensorView& matrix) const override {
    const std::int64_t first = how.first_row, rows = matrix.size(0);
    HAWSER_CHECK(first + rows <= ctx.batch().ids.size(0), "rows of other ranks: ", first, " of ", matrix.text());
    const TensorView q = ctx.temp(matrix.dtype(), matrix.shape());
    const bool current = how.scale.empty();
    const TensorView scale = current ? ctx.temp(DType::f32, {1}) : how.scale, amax = how.amax;
    const TensorView segments = ctx.batch().diagonal, count = ctx.batch().diagonal_count;
    OpRecord record{.name = "quantize", .kind = OpKind::elementwise};
    for (const TensorView& view : {matrix, segments, count}) record.accesses.push_back(reads(view));
    record.accesses.push_back(current ? writes(scale) : reads(scale));
    record.accesses.push_back(writes(q));
    if (!amax.empty()) record.accesses.push_back(reads(amax)), record.accesses.push_back(writes(amax));
    ctx.compute().launch(std::move(record), [this, matrix, segments, count, scale, amax, q, current, first, rows] {
      dispatch_float(matrix.dtype(), [&](auto tag) {
        using T = decltype(tag);
        float found = 0;
        const auto* const table = segments.data<std::int32_t>();
        for (std::int32_t s = 0; s < *count.data<std::int32_t>(); ++s) {
          const std::int64_t begin = table[6 * s] - first, end = begin + table[6 * s + 1];
          for (std::int64_t row = std::max<std::int64_t>(begin, 0); row < std::min(end, rows); ++row) {
            const T* const x = matrix.rows(row, 1).data<T>();
            for (std::int64_t c = 0; c < matrix.size(1); ++c) found = join_amax(found, static_cast<float>(x[c]));
          }
        }
        if (current) *scale.data<float>() = scale_of(found, 1);
        for (std::int64_t row = 0; row < matrix.size(0); ++row) {
          const T* const x = matrix.rows(row, 1).data<T>();
          T* const y = q.rows(row, 1).data<T>();
          for (std::int64_t c = 0; c < matrix.size(1); ++c) {
            y[c] = static_cast<T>(to_e4m3(static_cast<float>(x[c]) / *scale.data<float>()));
          }
        }
        if (amax.empty()) return;
        *amax.data<float>() = join_amax(*amax.data<float>(), found);
        ++recorded_;
      });
    });
    return {q, scale};
  }

  void judge(Stream& stream, const nn::JudgedStep& s) const override {
    if (!settings_.replays) return;
    OpRecord record{.name = "judge", .kind = OpKind::optimizer};
    for (const TensorView& view : {s.amax, s.scales, s.step, s.replay_step, s.skip}) {
      record.accesses.push_back(reads(view));
    }
    for (const TensorView& view : {s.replay_step, s.skip}) record.accesses.push_back(writes(view));
    stream.launch(std::move(record), [s] {
      std::int32_t &replay = *s.replay_step.data<std::int32_t>(), &skip = *s.skip.data<std::int32_t>();
      const std::int32_t step = *s.step.data<std::int32_t>();
      if (replay >= 0 && replay != step) {
        skip = static_cast<std::int32_t>(step::Skip::replay);
        return;
      }
      if (skip != 0) return;
      replay = -1;
      for (std::int64_t i = 0; i < s.amax.elements(); ++i) {
        if (s.amax.data<float>()[i] <= kLargestE4m3 * s.scales.data<float>()[i]) continue;
        skip = static_cast<std::int32_t>(step::Skip::saturated);
        replay = step;
      }
    });
  }

  void update_scales(Stream& stream, const nn::SiteScales& s) const override {
    OpRecord record{.name = "update_scales", .kind = OpKind::optimizer};
    for (const TensorView& view : {s.amax, s.history, s.scales, s.skip}) record.accesses.push_back(reads(view));
    for (const TensorView& view : {s.history, s.scales}) record.accesses.push_back(writes(view));
    stream.launch(std::move(record), [this, s] {
      if (*s.skip.data<std::int32_t>() != 0) return;
      for (std::int64_t i = 0; i < s.amax.elements(); ++i) {
        float* const entries = s.history.rows(i, 1).data<float>();
        const float amax = s.amax.data<float>()[i];
        if (!std::isfinite(amax)) continue;
        std::copy_backward(entries, entries + 3, entries + 4);
        entries[0] = amax;
        float& scale = s.scales.data<float>()[i];
        scale = scale_of(*std::max_element(entries, entries + 4), scale);
      }
    });
  }

  void measure(Stream& stream, const nn::FlatValues& piece, const TensorView& amax) const override {
    const nn::Flat* const flat = &piece.flat;
    HAWSER_CHECK(flat->spec().scaled, "scales of blocks");
    OpRecord record{.name = "measure", .kind = OpKind::elementwise, .accesses = {reads(piece.values), writes(amax)}};
    stream.launch(std::move(record), [flat, begin = piece.begin, values = piece.values, amax] {
      for (int p = 0; p < static_cast<int>(flat->params().size()); ++p) {
        float found = 0;
        each_element(*flat, p, begin, values.elements(),
                     [&](std::int64_t i) { found = join_amax(found, values.data<float>()[i]); });
        amax.data<float>()[p] = found;
      }
    });
  }

  void weight_scales(Stream& stream, const nn::Flat&, const TensorView& amax, const TensorView& scales) const override {
    OpRecord record{.name = "weight_scales", .kind = OpKind::optimizer};
    for (const TensorView& view : {amax, scales}) record.accesses.push_back(reads(view));
    record.accesses.push_back(writes(scales));
    stream.launch(std::move(record), [this, amax, scales] {
      for (std::int64_t i = 0; i < scales.elements(); ++i) {
        scales.data<float>()[i] = scale_of(amax.data<float>()[i], scales.data<float>()[i]);
      }
    });
  }

  void quantize_weights(Stream& stream, const nn::FlatValues& piece, const TensorView& scales,
                        const TensorView& q) const override {
    const nn::Flat* const flat = &piece.flat;
    OpRecord record{.name = "quantize_weights", .kind = OpKind::elementwise};
    for (const TensorView& view : {piece.values, scales}) record.accesses.push_back(reads(view));
    record.accesses.push_back(writes(q));
    stream.launch(std::move(record), [flat, begin = piece.begin, values = piece.values, scales, q] {
      dispatch_float(q.dtype(), [&](auto tag) {
        using T = decltype(tag);
        std::fill_n(q.data<T>(), q.elements(), T());
        for (int p = 0; p < static_cast<int>(flat->params().size()); ++p) {
          each_element(*flat, p, begin, values.elements(), [&](std::int64_t i) {
            q.data<T>()[i] = static_cast<T>(to_e4m3(values.data<float>()[i] / scales.data<float>()[p]));
          });
        }
      });
    });
  }

 private:
  // Calls body(i) for each element i of the piece that is of parameter p.
  template <class Body>
  static void each_element(const nn::Flat& flat, int p, std::int64_t begin, std::int64_t count, const Body& body) {
    const std::int64_t first = flat.offset(p), end = first + flat.params()[static_cast<std::size_t>(p)].elements();
    for (std::int64_t i = std::max(first, begin); i < std::min(end, begin + count); ++i) body(i - begin);
  }

  Settings settings_;
  mutable std::atomic<std::int64_t> recorded_ = 0;
};

}  // namespace hawser::testing
