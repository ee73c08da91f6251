#include "ops/rope/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace hawser::ops {

void rope(Stream& stream, const Rope& args) {
  HAWSER_CHECK(args.x.rank() == 3 && args.frequencies.rank() == 1 && args.x.size(2) >= 2 * args.frequencies.size(0),
               "rope: x is [T, heads, D] with D at least 2 * frequencies, not ", args.x.shape().text(), " with ",
               args.frequencies.shape().text());
  HAWSER_CHECK(args.x.size(2) <= kRopeMaxHeadDim, "rope: head dim is above ", kRopeMaxHeadDim);
  expect("rope", "x", args.x, {DType::f32, DType::bf16}, args.x.shape(), Rows::padded);
  expect("rope", "positions", args.positions, {DType::i32}, {args.x.size(0)});
  expect("rope", "frequencies", args.frequencies, {DType::f32}, args.frequencies.shape());
  expect_apart("rope", args.x, args.positions);
  expect_apart("rope", args.x, args.frequencies);
  run(stream, {"rope", OpKind::rope}, {args.x, args.positions, args.frequencies}, {args.x},
      3.0 * static_cast<double>(args.x.elements()), args, HAWSER_BACKENDS(rope));
}

namespace {

// The dims between which yarn's frequencies go from those of the model's own context to the divided ones.
struct YarnRange {
  double low = 0, high = 0;
};

YarnRange yarn_range(const RopeConfig& c) {
  HAWSER_CHECK(c.beta_fast > 0 && c.beta_slow > 0 && c.theta > 1 && c.original_max_position > 0, "rope: beta_fast ",
               c.beta_fast, ", beta_slow ", c.beta_slow, ", theta ", c.theta, ", original_max_position ",
               c.original_max_position);
  const auto dim_of = [&](double rotations) {
    return static_cast<double>(c.head_dim) *
           std::log(static_cast<double>(c.original_max_position) / (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(c.theta));
  };
  double low = dim_of(c.beta_fast), high = dim_of(c.beta_slow);
  if (c.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(c.head_dim - 1));
  return {low, low == high ? high + 0.001 : high};
}

float yarn_frequency(const RopeConfig& c, const YarnRange& range, std::int64_t i, float base) {
  const double ramp = std::clamp((static_cast<double>(i) - range.low) / (range.high - range.low), 0.0, 1.0);
  const auto own = static_cast<double>(base);
  return static_cast<float>(ramp * own / c.factor + (1.0 - ramp) * own);
}

}  // namespace

double rope_attention_factor(const RopeConfig& c) {
  if (c.kind != RopeKind::yarn) return 1.0;
  if (c.attention_factor != 0) return c.attention_factor;
  const auto by = [&](double mscale) { return c.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(c.factor) + 1.0; };
  return c.mscale != 0 && c.mscale_all_dim != 0 ? by(c.mscale) / by(c.mscale_all_dim) : by(1.0);
}

std::vector<float> rope_frequencies(const RopeConfig& config) {
  HAWSER_CHECK(config.head_dim > 0 && config.head_dim % 2 == 0, "rope: head_dim ", config.head_dim);
  HAWSER_CHECK(config.theta > 0 && config.factor > 0, "rope: theta ", config.theta, ", factor ", config.factor);
  const YarnRange range = config.kind == RopeKind::yarn ? yarn_range(config) : YarnRange();
  std::vector<float> out;
  for (std::int64_t i = 0; i < config.head_dim / 2; ++i) {
    // transformers computes every step in float32; this does too, except for the power.
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.head_dim);
    const float base = 1.0f / static_cast<float>(std::pow(config.theta, static_cast<double>(exponent)));
    switch (config.kind) {
      case RopeKind::standard:
        out.push_back(base);
        break;
      case RopeKind::linear:
        out.push_back(base / static_cast<float>(config.factor));
        break;
      case RopeKind::llama3: {
        const double original = static_cast<double>(config.original_max_position);
        const double wavelength = 2.0 * std::numbers::pi / static_cast<double>(base);
        if (wavelength < original / config.high_freq_factor) {
          out.push_back(base);
        } else if (wavelength > original / config.low_freq_factor) {
          out.push_back(base / static_cast<float>(config.factor));
        } else {
          const double smooth =
              (original / wavelength - config.low_freq_factor) / (config.high_freq_factor - config.low_freq_factor);
          const double blended =
              (1.0 - smooth) * static_cast<double>(base) / config.factor + smooth * static_cast<double>(base);
          out.push_back(static_cast<float>(blended));
        }
        break;
      }
      case RopeKind::yarn:
        out.push_back(yarn_frequency(config, range, i, base));
        break;
    }
  }
  return out;
}

}  // namespace hawser::ops
