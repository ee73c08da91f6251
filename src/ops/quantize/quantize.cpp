#include "ops/quantize/quantize.h"

namespace hawser::ops {

namespace {

void expect_mask(const char* op, const TensorView& mask, std::int64_t rows) {
  if (!mask.empty()) expect(op, "mask", mask, {DType::i32}, {rows});
}

}  // namespace

void expect_fp8_output(const char* op, const Fp8Output& to, std::initializer_list<DType> dtypes, std::int64_t rows,
                       std::int64_t columns) {
  expect(op, "scale", to.scale, {DType::f32}, {1});
  HAWSER_CHECK(!to.empty(), op, ": nothing to write");
  if (!to.q.empty()) expect(op, "q", to.q, dtypes, {rows, columns});
  if (!to.transposed.empty()) {
    expect(op, "transposed", to.transposed, dtypes, {columns, rows});
    HAWSER_CHECK(to.q.empty() || to.q.dtype() == to.transposed.dtype(), op, ": q and transposed have two dtypes");
  }
  expect_mask(op, to.mask, rows);
  if (!to.row_count.empty()) expect(op, "row_count", to.row_count, {DType::i32}, {1});
  if (!to.used.empty()) expect(op, "used", to.used, {DType::f32}, {1});
  if (!to.amax.empty()) expect(op, "amax", to.amax, {DType::f32}, {1});
  if (!to.saturated.empty()) expect(op, "saturated", to.saturated, {DType::f32}, {1});
  for (const TensorView& read : {to.scale, to.mask, to.row_count}) expect_apart(op, to, read);
  expect_apart(op, to.q, to.transposed);
}

void expect_apart(const char* op, const Fp8Output& to, const TensorView& view) {
  for (const TensorView& written : {to.q, to.transposed, to.used, to.amax, to.saturated}) {
    expect_apart(op, written, view);
  }
}

void quantize(Stream& stream, const Quantize& args) {
  constexpr auto kOp = "quantize";
  expect_matrix(kOp, "x", args.x);
  expect(kOp, "x", args.x, {DType::f32, DType::bf16}, args.x.shape(), Rows::padded);
  expect_fp8_output(kOp, args.output(), {DType::f8e4m3, DType::f8e5m2}, args.x.size(0), args.x.size(1));
  expect_apart(kOp, args.output(), args.x);
  run(stream, {kOp, OpKind::elementwise}, {args.x, args.scale, args.mask, args.row_count, args.amax, args.saturated},
      {args.q, args.transposed, args.used, args.amax, args.saturated}, 2.0 * static_cast<double>(args.x.elements()),
      args, HAWSER_BACKENDS(quantize));
}

void dequantize(Stream& stream, const Dequantize& args) {
  constexpr auto kOp = "dequantize";
  HAWSER_CHECK(args.q.rank() == 2 || args.q.rank() == 3, kOp, ": q ", args.q.text(), " is no matrix, nor several");
  expect(kOp, "q", args.q, {DType::f8e4m3, DType::f8e5m2}, args.q.shape());
  expect(kOp, "scale", args.scale, {DType::f32}, {args.q.rank() == 3 ? args.q.size(0) : 1});
  expect(kOp, "y", args.y, {DType::f32, DType::bf16}, args.q.shape());
  for (const TensorView& view : {args.q, args.scale}) expect_apart(kOp, args.y, view);
  run(stream, {kOp, OpKind::elementwise}, {args.q, args.scale}, {args.y}, static_cast<double>(args.q.elements()), args,
      HAWSER_BACKENDS(dequantize));
}

void amax(Stream& stream, const Amax& args) {
  constexpr auto kOp = "amax";
  HAWSER_CHECK(args.x.rank() == 1 || args.x.rank() == 2, kOp, ": x is ", args.x.text());
  expect(kOp, "x", args.x, {DType::f32, DType::bf16}, args.x.shape(), Rows::padded);
  expect_mask(kOp, args.mask, args.x.size(0));
  expect(kOp, "out", args.out, {DType::f32}, {1});
  if (!args.row_count.empty()) {
    expect_matrix(kOp, "x", args.x);
    expect(kOp, "row_count", args.row_count, {DType::i32}, {1});
  }
  for (const TensorView& view : {args.x, args.mask, args.row_count}) expect_apart(kOp, args.out, view);
  run(stream, {kOp, OpKind::elementwise},
      {args.x, args.mask, args.row_count, args.accumulate ? args.out : TensorView()}, {args.out},
      static_cast<double>(args.x.elements()), args, HAWSER_BACKENDS(amax));
}

void scales_of_amaxes(Stream& stream, const ScalesOfAmaxes& args) {
  constexpr auto kOp = "scales_of_amaxes";
  HAWSER_CHECK(args.amax.rank() == 1 && is_fp8(args.dtype), kOp, ": amax ", args.amax.text(), " for ",
               to_string(args.dtype));
  expect(kOp, "amax", args.amax, {DType::f32}, args.amax.shape());
  expect(kOp, "scales", args.scales, {DType::f32}, args.amax.shape());
  expect_apart(kOp, args.amax, args.scales);
  run(stream, {kOp, OpKind::optimizer}, {args.amax, args.otherwise ? TensorView() : args.scales}, {args.scales},
      2.0 * static_cast<double>(args.amax.elements()), args, HAWSER_BACKENDS(scales_of_amaxes));
}

void delayed_scales(Stream& stream, const DelayedScales& args) {
  constexpr auto kOp = "delayed_scales";
  HAWSER_CHECK(args.history.rank() == 2, kOp, ": history is ", args.history.text());
  const std::int64_t rows = args.history.size(0);
  expect(kOp, "amax", args.amax, {DType::f32}, {rows});
  expect(kOp, "history", args.history, {DType::f32}, args.history.shape());
  expect(kOp, "scales", args.scales, {DType::f32}, {rows});
  expect(kOp, "skip", args.skip, {DType::i32}, {1});
  for (const TensorView& view : {args.amax, args.skip}) {
    expect_apart(kOp, args.history, view);
    expect_apart(kOp, args.scales, view);
  }
  expect_apart(kOp, args.history, args.scales);
  run(stream, {kOp, OpKind::optimizer}, {args.amax, args.history, args.scales, args.skip}, {args.history, args.scales},
      2.0 * static_cast<double>(args.history.elements()), args, HAWSER_BACKENDS(delayed_scales));
}

}  // namespace hawser::ops
