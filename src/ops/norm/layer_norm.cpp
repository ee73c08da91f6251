#include "ops/norm/layer_norm.h"

namespace hawser::ops {

void layer_norm_forward(Stream& stream, const LayerNormForward& args) {
  constexpr auto kOp = "layer_norm_forward";
  HAWSER_CHECK(args.x.rank() == 2 && args.x.size(1) > 0, kOp, ": x must be a matrix with at least one column");
  expect(kOp, "x", args.x, {DType::f32, DType::bf16}, args.x.shape(), Rows::padded);
  expect(kOp, "weight", args.weight, {DType::f32, DType::bf16}, {args.x.size(1)});
  if (!args.bias.empty()) expect(kOp, "bias", args.bias, {args.weight.dtype()}, {args.x.size(1)});
  expect(kOp, "y", args.y, {args.x.dtype()}, args.x.shape(), Rows::padded);
  expect(kOp, "statistics", args.statistics, {DType::f32}, {2, args.x.size(0)});
  for (const TensorView& view : {args.x, args.weight, args.bias, args.statistics}) expect_apart(kOp, args.y, view);
  expect_apart(kOp, args.statistics, args.x);
  HAWSER_CHECK(args.epsilon >= 0, kOp, ": epsilon is ", args.epsilon);
  run(stream, {kOp, OpKind::norm}, {args.x, args.weight, args.bias}, {args.y, args.statistics},
      6.0 * static_cast<double>(args.x.elements()), args, HAWSER_BACKENDS(layer_norm_forward));
}

void layer_norm_backward(Stream& stream, const LayerNormBackward& args) {
  constexpr auto kOp = "layer_norm_backward";
  HAWSER_CHECK(args.x.rank() == 2 && args.x.size(1) > 0, kOp, ": x must be a matrix with at least one column");
  const DType act = args.x.dtype();
  const Shape row{args.x.size(1)};
  expect(kOp, "x", args.x, {DType::f32, DType::bf16}, args.x.shape(), Rows::padded);
  expect(kOp, "weight", args.weight, {DType::f32, DType::bf16}, row);
  expect(kOp, "statistics", args.statistics, {DType::f32}, {2, args.x.size(0)});
  expect(kOp, "dy", args.dy, {act}, args.x.shape(), Rows::padded);
  expect(kOp, "dx", args.dx, {act}, args.x.shape(), Rows::padded);
  expect_apart_or_same(kOp, args.dx, args.dy);
  if (!args.residual_gradient.empty()) {
    expect(kOp, "residual_gradient", args.residual_gradient, {act}, args.x.shape(), Rows::padded);
    expect_apart_or_same(kOp, args.dx, args.residual_gradient);
  }
  for (const TensorView& view : {args.x, args.weight, args.statistics}) expect_apart(kOp, args.dx, view);
  for (const TensorView& gradient : {args.dweight, args.dbias}) {
    if (gradient.empty()) continue;
    expect(kOp, "dweight or dbias", gradient, {DType::f32, DType::bf16}, row);
    for (const TensorView& view : {args.x, args.weight, args.dy, args.dx}) expect_apart(kOp, gradient, view);
  }
  if (!args.dweight.empty() && !args.dbias.empty()) expect_apart(kOp, args.dweight, args.dbias);
  run(stream, {kOp, OpKind::norm},
      {args.x, args.weight, args.statistics, args.dy, args.residual_gradient,
       args.accumulate_weight ? args.dweight : TensorView(), args.accumulate_bias ? args.dbias : TensorView()},
      {args.dx, args.dweight, args.dbias}, 12.0 * static_cast<double>(args.x.elements()), args,
      HAWSER_BACKENDS(layer_norm_backward));
}

}  // namespace hawser::ops
