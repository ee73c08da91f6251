#include "ops/rope/rope.h"

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

std::vector<float> rope_frequencies(const RopeConfig& config) {
  HAWSER_CHECK(config.head_dim > 0 && config.head_dim % 2 == 0, "rope: head_dim ", config.head_dim);
  HAWSER_CHECK(config.theta > 0 && config.factor > 0, "rope: theta ", config.theta, ", factor ", config.factor);
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
    }
  }
  return out;
}

}  // namespace hawser::ops
