#include "ops/norm/rms_norm.h"

#include <algorithm>

#include "base/units.h"

namespace hawser::ops {

namespace {

struct RowShape {
  Shape leading;          // of the rows: [T] or [T, H]
  std::int64_t channels;  // of a row
};

RowShape row_shape(const char* op, const TensorView& x) {
  HAWSER_CHECK((x.rank() == 2 || x.rank() == 3) && x.size(x.rank() - 1) > 0, op,
               ": x must be a matrix, or heads [T, H, C], with at least one column");
  HAWSER_CHECK(x.rank() == 2 || x.size(2) <= kRmsNormMaxHeadDim, op, ": head dim is above ", kRmsNormMaxHeadDim);
  return {x.rank() == 2 ? Shape{x.size(0)} : Shape{x.size(0), x.size(1)}, x.size(x.rank() - 1)};
}

}  // namespace

void rms_norm_forward(Stream& stream, const RmsNormForward& args) {
  constexpr auto kOp = "rms_norm_forward";
  const RowShape rows = row_shape(kOp, args.x);
  expect(kOp, "x", args.x, {DType::f32, DType::bf16}, args.x.shape(), Rows::padded);
  expect(kOp, "weight", args.weight, {DType::f32, DType::bf16}, {rows.channels});
  expect(kOp, "rstd", args.rstd, {DType::f32}, rows.leading);
  const Fp8Output& fp8 = args.fp8;
  if (fp8.empty()) {
    expect(kOp, "y", args.y, {args.x.dtype()}, args.x.shape(), Rows::padded);
    expect_apart_or_same(kOp, args.y, args.x);
    expect_apart(kOp, args.y, args.weight);
    expect_apart(kOp, args.y, args.rstd);
  } else {
    HAWSER_CHECK(args.y.empty() && args.x.rank() == 2, kOp, ": FP8 of a matrix, in place of y");
    expect_fp8_output(kOp, fp8, {DType::f8e4m3}, args.x.size(0), args.x.size(1));
    HAWSER_CHECK(fp8.row_count.empty(), kOp, ": a count of rows on the device");
    for (const TensorView& view : {args.x, args.weight, args.rstd}) expect_apart(kOp, fp8, view);
  }
  expect_apart(kOp, args.rstd, args.x);
  HAWSER_CHECK(args.epsilon >= 0, kOp, ": epsilon is ", args.epsilon);
  run(stream, {kOp, OpKind::norm}, {args.x, args.weight, fp8.scale, fp8.mask, fp8.amax, fp8.saturated},
      {args.y, args.rstd, fp8.q, fp8.transposed, fp8.used, fp8.amax, fp8.saturated},
      4.0 * static_cast<double>(args.x.elements()), args, HAWSER_BACKENDS(rms_norm_forward));
}

std::int64_t rms_norm_row_blocks(std::int64_t rows) {
  return std::clamp<std::int64_t>(ceil_div(rows, 32), 1, 64);
}

std::int64_t rms_norm_backward_workspace(std::int64_t rows, std::int64_t channels) {
  return rms_norm_row_blocks(rows) * round_up(channels, 16) * 4;
}

void rms_norm_backward(Stream& stream, const RmsNormBackward& args) {
  constexpr auto kOp = "rms_norm_backward";
  const RowShape rows = row_shape(kOp, args.x);
  const auto act = args.x.dtype();
  expect(kOp, "x", args.x, {DType::f32, DType::bf16}, args.x.shape(), Rows::padded);
  expect(kOp, "weight", args.weight, {DType::f32, DType::bf16}, {rows.channels});
  expect(kOp, "rstd", args.rstd, {DType::f32}, rows.leading);
  expect(kOp, "dy", args.dy, {act}, args.x.shape(), Rows::padded);
  HAWSER_CHECK(!args.dx.empty() || !args.dweight.empty(), kOp, ": dx and dweight are both missing");
  if (!args.residual_gradient.empty()) {
    HAWSER_CHECK(!args.dx.empty(), kOp, ": residual_gradient without dx");
    expect(kOp, "residual_gradient", args.residual_gradient, {act}, args.x.shape(), Rows::padded);
  }
  if (!args.dx.empty()) {
    expect(kOp, "dx", args.dx, {act}, args.x.shape(), Rows::padded);
    expect_apart_or_same(kOp, args.dx, args.dy);
    expect_apart_or_same(kOp, args.dx, args.residual_gradient);
    expect_apart(kOp, args.dx, args.x);
    expect_apart(kOp, args.dx, args.weight);
    expect_apart(kOp, args.dx, args.dweight);
  }
  if (!args.dweight.empty()) {
    expect(kOp, "dweight", args.dweight, {DType::f32, DType::bf16}, {rows.channels});
    expect_workspace(kOp, args.workspace, rms_norm_backward_workspace(rows.leading.elements(), rows.channels));
    for (const TensorView& view : {args.x, args.weight, args.dy}) expect_apart(kOp, args.dweight, view);
  }
  const TensorView old_weight = args.accumulate_weight ? args.dweight : TensorView();
  const TensorView workspace = args.dweight.empty() ? TensorView() : args.workspace;
  run(stream, {kOp, OpKind::norm}, {args.x, args.weight, args.rstd, args.dy, args.residual_gradient, old_weight},
      {args.dx, args.dweight, workspace}, 10.0 * static_cast<double>(args.x.elements()), args,
      HAWSER_BACKENDS(rms_norm_backward));
}

}  // namespace hawser::ops
