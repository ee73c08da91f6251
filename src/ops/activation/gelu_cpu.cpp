#include <cmath>
#include <numbers>

#include "ops/activation/elementwise_cpu.h"
#include "ops/activation/gelu.h"

namespace hawser::ops::cpu {

namespace {

// The factor of x in y, and dy/dx.
struct Point {
  float share, slope;
};

Point exact(float x) {
  const float share = 0.5f * (1.0f + std::erf(x * static_cast<float>(1.0 / std::numbers::sqrt2)));
  const auto density = static_cast<float>(0.5 * std::numbers::inv_sqrtpi * std::numbers::sqrt2);
  return {share, share + x * density * std::exp(-0.5f * x * x)};
}

Point by_tanh(float x) {
  const auto root = static_cast<float>(std::numbers::sqrt2 * std::numbers::inv_sqrtpi);
  const float t = std::tanh(root * (x + 0.044715f * x * x * x));
  const float share = 0.5f * (1.0f + t);
  return {share, share + 0.5f * x * (1.0f - t * t) * root * (1.0f + 3.0f * 0.044715f * x * x)};
}

Point point(Gelu kind, float x) {
  return kind == Gelu::exact ? exact(x) : by_tanh(x);
}

}  // namespace

void gelu_forward(const GeluForward& args) {
  each_forward(args, [&](float x) { return x * point(args.kind, x).share; });
}

void gelu_backward(const GeluBackward& args) {
  each_backward(args, [&](float x) {
    const Point at = point(args.kind, x);
    return ActivationPoint{x * at.share, at.slope};
  });
}

}  // namespace hawser::ops::cpu
