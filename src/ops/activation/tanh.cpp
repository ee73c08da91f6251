#include "ops/activation/tanh.h"

#include "ops/activation/elementwise.h"

namespace hawser::ops {

void tanh_forward(Stream& stream, const TanhForward& args) {
  constexpr auto kOp = "tanh_forward";
  check_elementwise_forward(kOp, args);
  run(stream, {kOp, OpKind::activation}, {args.x}, {args.y}, 8.0 * static_cast<double>(args.y.elements()), args,
      HAWSER_BACKENDS(tanh_forward));
}

void tanh_backward(Stream& stream, const TanhBackward& args) {
  constexpr auto kOp = "tanh_backward";
  check_elementwise_backward(kOp, args);
  run(stream, {kOp, OpKind::activation}, {args.x, args.dy}, {args.dx, args.y},
      16.0 * static_cast<double>(args.dy.elements()), args, HAWSER_BACKENDS(tanh_backward));
}

}  // namespace hawser::ops
