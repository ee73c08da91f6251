#include "ops/activation/tanh.h"

namespace hawser::ops {

void tanh_forward(Stream& stream, const TanhForward& args) {
  constexpr auto kOp = "tanh_forward";
  HAWSER_CHECK(args.y.rank() == 2, kOp, ": y must be a matrix");
  expect(kOp, "y", args.y, {DType::f32, DType::bf16}, args.y.shape(), Rows::padded);
  expect(kOp, "x", args.x, {args.y.dtype()}, args.y.shape(), Rows::padded);
  expect_apart(kOp, args.y, args.x);
  run(stream, {kOp, OpKind::activation}, {args.x}, {args.y}, 8.0 * static_cast<double>(args.y.elements()), args,
      HAWSER_BACKENDS(tanh_forward));
}

void tanh_backward(Stream& stream, const TanhBackward& args) {
  constexpr auto kOp = "tanh_backward";
  HAWSER_CHECK(args.dy.rank() == 2, kOp, ": dy must be a matrix");
  expect(kOp, "dy", args.dy, {DType::f32, DType::bf16}, args.dy.shape(), Rows::padded);
  expect(kOp, "x", args.x, {args.dy.dtype()}, args.dy.shape(), Rows::padded);
  expect(kOp, "dx", args.dx, {args.dy.dtype()}, args.dy.shape(), Rows::padded);
  expect_apart_or_same(kOp, args.dx, args.x);
  expect_apart(kOp, args.dx, args.dy);
  if (!args.y.empty()) {
    expect(kOp, "y", args.y, {args.dy.dtype()}, args.dy.shape(), Rows::padded);
    expect_apart_or_same(kOp, args.y, args.dy);
    expect_apart(kOp, args.y, args.x);
    expect_apart(kOp, args.y, args.dx);
  }
  run(stream, {kOp, OpKind::activation}, {args.x, args.dy}, {args.dx, args.y},
      16.0 * static_cast<double>(args.dy.elements()), args, HAWSER_BACKENDS(tanh_backward));
}

}  // namespace hawser::ops
