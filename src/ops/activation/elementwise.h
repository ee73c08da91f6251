// Checks of arguments that activations of one matrix share (gelu.h, tanh.h). Internal to ops/activation. InternalError.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

template <class Forward>
void check_elementwise_forward(const char* op, const Forward& args) {
  HAWSER_CHECK(args.y.rank() == 2, op, ": y must be a matrix");
  expect(op, "y", args.y, {DType::f32, DType::bf16}, args.y.shape(), Rows::padded);
  expect(op, "x", args.x, {args.y.dtype()}, args.y.shape(), Rows::padded);
  expect_apart(op, args.y, args.x);
}

template <class Backward>
void check_elementwise_backward(const char* op, const Backward& args) {
  HAWSER_CHECK(args.dy.rank() == 2, op, ": dy must be a matrix");
  expect(op, "dy", args.dy, {DType::f32, DType::bf16}, args.dy.shape(), Rows::padded);
  expect(op, "x", args.x, {args.dy.dtype()}, args.dy.shape(), Rows::padded);
  expect(op, "dx", args.dx, {args.dy.dtype()}, args.dy.shape(), Rows::padded);
  expect_apart_or_same(op, args.dx, args.x);
  expect_apart(op, args.dx, args.dy);
  if (args.y.empty()) return;
  expect(op, "y", args.y, {args.dy.dtype()}, args.dy.shape(), Rows::padded);
  expect_apart_or_same(op, args.y, args.dy);
  expect_apart(op, args.y, args.x);
  expect_apart(op, args.y, args.dx);
}

}  // namespace hawser::ops
