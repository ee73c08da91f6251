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
  expect(kOp, "q", args.q, {DType::nf4, DType::nf4_double}, blocks_of(kOp, args.x));
  expect_apart(kOp, args.q, args.x);
  const double flops = 3.0 * static_cast<double>(args.x.elements());
  if (args.q.dtype() == DType::nf4) {
    HAWSER_CHECK(args.maxima.empty() && args.places.empty(), kOp, ": maxima beside scales in the blocks");
    return run(stream, {kOp, OpKind::elementwise}, {args.x}, {args.q}, flops, args, HAWSER_BACKENDS(quantize_nf4));
  }
  expect(kOp, "maxima", args.maxima, {DType::f32}, {args.maxima.elements()});
  expect(kOp, "places", args.places, {DType::i32}, {args.q.elements()});
  run(stream, {kOp, OpKind::elementwise}, {args.x, args.places}, {args.q, args.maxima}, flops, args,
      HAWSER_BACKENDS(quantize_nf4));
}

void encode_nf4_scales(Stream& stream, const EncodeNf4Scales& args) {
  constexpr auto kOp = "encode_nf4_scales";
  const std::int64_t groups = args.maxima.elements() / kNf4GroupBlocks;
  expect(kOp, "maxima", args.maxima, {DType::f32}, {kNf4GroupBlocks * groups});
  expect(kOp, "groups", args.groups, {DType::f32}, {groups, 2});
  expect(kOp, "q", args.q, {DType::nf4_double}, args.q.shape());
  expect(kOp, "places", args.places, {DType::i32}, {args.q.elements()});
  run(stream, {kOp, OpKind::elementwise}, {args.maxima, args.groups, args.places}, {args.q}, 0, args,
      HAWSER_BACKENDS(encode_nf4_scales));
}

void dequantize_nf4(Stream& stream, const DequantizeNf4& args) {
  constexpr auto kOp = "dequantize_nf4";
  expect(kOp, "y", args.y, {DType::f32, DType::bf16}, args.y.shape());
  expect(kOp, "q", args.q, {DType::nf4, DType::nf4_double}, args.q.shape());
  HAWSER_CHECK(args.y.rank() == 2 && args.q.rank() == 2 && args.q.size(0) == args.y.size(0), kOp, ": rows of q ",
               args.q.text(), " and y ", args.y.text());
  HAWSER_CHECK(args.first_column >= 0 && args.first_column + args.y.size(1) <= kNf4Block * args.q.size(1), kOp,
               ": columns of y ", args.y.text(), " from ", args.first_column, " on of q ", args.q.text());
  expect_apart(kOp, args.y, args.q);
  const auto flops = static_cast<double>(args.y.elements());
  if (args.q.dtype() == DType::nf4) {
    HAWSER_CHECK(args.scales.groups.empty() && args.scales.row_places.empty(), kOp, ": groups of scales of nf4");
    return run(stream, {kOp, OpKind::elementwise}, {args.q}, {args.y}, flops, args, HAWSER_BACKENDS(dequantize_nf4));
  }
  expect(kOp, "groups", args.scales.groups, {DType::f32}, {args.scales.groups.elements() / 2, 2});
  expect(kOp, "row_places", args.scales.row_places, {DType::i32}, {args.q.size(0)});
  run(stream, {kOp, OpKind::elementwise}, {args.q, args.scales.groups, args.scales.row_places}, {args.y}, flops, args,
      HAWSER_BACKENDS(dequantize_nf4));
}

}  // namespace hawser::ops
