// Loops that activations of one matrix share on the CPU (gelu.h, tanh.h). Internal to ops/activation.
#pragma once

#include "ops/cpu/parallel.h"
#include "ops/run_op.h"

namespace hawser::ops::cpu {

// y and dy/dx of an element.
struct ActivationPoint {
  float value, slope;
};

// y = value(x)
template <class Forward, class Value>
void each_forward(const Forward& args, const Value& value) {
  dispatch_float(args.y.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    const auto x = rows_of<Act>(args.x);
    const auto y = rows_of<Act>(args.y);
    parallel_pieces(y.count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        for (std::int64_t f = 0; f < y.columns; ++f) {
          y.row(t)[f] = static_cast<Act>(value(static_cast<float>(x.row(t)[f])));
        }
      }
    });
  });
}

// dx = dy * point(x).slope and, if there is a y, y = point(x).value
template <class Backward, class Point>
void each_backward(const Backward& args, const Point& point) {
  dispatch_float(args.dy.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    const auto x = rows_of<Act>(args.x);
    const auto dy = rows_of<Act>(args.dy);
    const auto dx = rows_of<Act>(args.dx);
    const auto y = rows_of<Act>(args.y);
    parallel_pieces(dy.count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        for (std::int64_t f = 0; f < dy.columns; ++f) {
          const auto gradient = static_cast<float>(dy.row(t)[f]);
          const ActivationPoint at = point(static_cast<float>(x.row(t)[f]));
          dx.row(t)[f] = static_cast<Act>(gradient * at.slope);
          if (y.data != nullptr) y.row(t)[f] = static_cast<Act>(at.value);
        }
      }
    });
  });
}

}  // namespace hawser::ops::cpu
