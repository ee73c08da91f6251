#include "ops/activation/gelu.h"

#include "ops/activation/elementwise.h"

namespace hawser::ops {

void gelu_forward(Stream& stream, const GeluForward& args) {
  constexpr auto kOp = "gelu_forward";
  check_elementwise_forward(kOp, args);
  run(stream, {kOp, OpKind::activation}, {args.x}, {args.y}, 8.0 * static_cast<double>(args.y.elements()), args,
      HAWSER_BACKENDS(gelu_forward));
}

void gelu_backward(Stream& stream, const GeluBackward& args) {
  constexpr auto kOp = "gelu_backward";
  check_elementwise_backward(kOp, args);
  run(stream, {kOp, OpKind::activation}, {args.x, args.dy}, {args.dx, args.y},
      16.0 * static_cast<double>(args.dy.elements()), args, HAWSER_BACKENDS(gelu_backward));
}

}  // namespace hawser::ops
