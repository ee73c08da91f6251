#include "ops/quantize/quantize_nf4.h"

namespace hawser::ops {

namespace {

// The blocks of values of this shape.
Shape blocks_of(const char* op, const TensorView& values) {
  Shape shape = values.shape();
  HAWSER_CHECK(shape.rank() > 0 && shape[shape.rank() - 1] % kNf4Block == 0, op, ": ", values.text(),
               " has no whole blocks of ", kNf4Block);
  shape[shape.rank() - 1] /= kNf4Block;
  return shape;
}

}  // namespace

void quantize_nf4(Stream& stream, const QuantizeNf4& args) {
  constexpr auto kOp = "quantize_nf4";
  expect(kOp, "x", args.x, {DType::f32, DType::bf16}, args.x.shape());
  expect(kOp, "q", args.q, {DType::nf4}, blocks_of(kOp, args.x));
  expect_apart(kOp, args.q, args.x);
  run(stream, {kOp, OpKind::elementwise}, {args.x}, {args.q}, 3.0 * static_cast<double>(args.x.elements()), args,
      HAWSER_BACKENDS(quantize_nf4));
}

void dequantize_nf4(Stream& stream, const DequantizeNf4& args) {
  constexpr auto kOp = "dequantize_nf4";
  expect(kOp, "y", args.y, {DType::f32, DType::bf16}, args.y.shape());
  expect(kOp, "q", args.q, {DType::nf4}, blocks_of(kOp, args.y));
  expect_apart(kOp, args.y, args.q);
  run(stream, {kOp, OpKind::elementwise}, {args.q}, {args.y}, static_cast<double>(args.y.elements()), args,
      HAWSER_BACKENDS(dequantize_nf4));
}

}  // namespace hawser::ops
