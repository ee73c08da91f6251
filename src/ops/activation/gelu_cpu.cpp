#include <cmath>
#include <numbers>

#include "ops/activation/gelu.h"
#include "ops/cpu/parallel.h"

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
  dispatch_float(args.y.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    const auto x = rows_of<Act>(args.x);
    const auto y = rows_of<Act>(args.y);
    parallel_pieces(y.count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        for (std::int64_t f = 0; f < y.columns; ++f) {
          const auto value = static_cast<float>(x.row(t)[f]);
          y.row(t)[f] = static_cast<Act>(value * point(args.kind, value).share);
        }
      }
    });
  });
}

void gelu_backward(const GeluBackward& args) {
  dispatch_float(args.dy.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    const auto x = rows_of<Act>(args.x);
    const auto dy = rows_of<Act>(args.dy);
    const auto dx = rows_of<Act>(args.dx);
    const auto y = rows_of<Act>(args.y);
    parallel_pieces(dy.count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        for (std::int64_t f = 0; f < dy.columns; ++f) {
          const auto value = static_cast<float>(x.row(t)[f]), gradient = static_cast<float>(dy.row(t)[f]);
          const Point at = point(args.kind, value);
          dx.row(t)[f] = static_cast<Act>(gradient * at.slope);
          if (y.data != nullptr) y.row(t)[f] = static_cast<Act>(value * at.share);
        }
      }
    });
  });
}

}  // namespace hawser::ops::cpu
