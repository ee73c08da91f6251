#include <cmath>

#include "ops/activation/tanh.h"
#include "ops/cpu/parallel.h"

namespace hawser::ops::cpu {

void tanh_forward(const TanhForward& args) {
  dispatch_float(args.y.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    const auto x = rows_of<Act>(args.x);
    const auto y = rows_of<Act>(args.y);
    parallel_pieces(y.count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        for (std::int64_t f = 0; f < y.columns; ++f) {
          y.row(t)[f] = static_cast<Act>(std::tanh(static_cast<float>(x.row(t)[f])));
        }
      }
    });
  });
}

void tanh_backward(const TanhBackward& args) {
  dispatch_float(args.dy.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    const auto x = rows_of<Act>(args.x);
    const auto dy = rows_of<Act>(args.dy);
    const auto dx = rows_of<Act>(args.dx);
    const auto y = rows_of<Act>(args.y);
    parallel_pieces(dy.count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        for (std::int64_t f = 0; f < dy.columns; ++f) {
          const float value = std::tanh(static_cast<float>(x.row(t)[f])), gradient = static_cast<float>(dy.row(t)[f]);
          dx.row(t)[f] = static_cast<Act>(gradient * (1.0f - value * value));
          if (y.data != nullptr) y.row(t)[f] = static_cast<Act>(value);
        }
      }
    });
  });
}

}  // namespace hawser::ops::cpu
