#include "ops/reduce/sum_squares.h"

namespace hawser::ops {

void sum_squares(Stream& stream, const SumSquares& args) {
  expect("sum_squares", "x", args.x, {DType::f32, DType::bf16}, args.x.shape());
  expect("sum_squares", "out", args.out, {DType::f32}, {1});
  expect_apart("sum_squares", args.x, args.out);
  run(stream, {"sum_squares", OpKind::gradient_norm}, {args.x, args.accumulate ? args.out : TensorView()}, {args.out},
      2.0 * static_cast<double>(args.x.elements()), args, HAWSER_BACKENDS(sum_squares));
}

void segment_sum_squares(Stream& stream, const SegmentSumSquares& args) {
  constexpr auto kOp = "segment_sum_squares";
  HAWSER_CHECK(args.x.rank() == 1, kOp, ": x must be a vector");
  expect(kOp, "x", args.x, {DType::f32, DType::bf16}, args.x.shape());
  expect(kOp, "out", args.out, {DType::f32}, {static_cast<std::int64_t>(args.ends.size())});
  expect_apart(kOp, args.x, args.out);
  std::int64_t at = 0;
  for (const std::int64_t end : args.ends) {
    HAWSER_CHECK(end >= at && end <= args.x.size(0), kOp, ": end ", end, " after ", at, " of ", args.x.size(0));
    at = end;
  }
  run(stream, {kOp, OpKind::gradient_norm}, {args.x.rows(0, at), args.accumulate ? args.out : TensorView()}, {args.out},
      2.0 * static_cast<double>(at), args, HAWSER_BACKENDS(segment_sum_squares));
}

void clip_coefficient(Stream& stream, const ClipCoefficient& args) {
  constexpr auto kOp = "clip_coefficient";
  expect(kOp, "sum_squares", args.sum_squares, {DType::f32}, {1});
  expect(kOp, "coefficient", args.coefficient, {DType::f32}, {1});
  if (!args.loss_scale.empty()) expect(kOp, "loss_scale", args.loss_scale, {DType::f32}, {1});
  if (!args.norm_out.empty()) expect(kOp, "norm_out", args.norm_out, {DType::f32}, {1});
  if (!args.skip.empty()) expect(kOp, "skip", args.skip, {DType::i32}, {1});
  HAWSER_CHECK(args.max_norm >= 0, kOp, ": max_norm is ", args.max_norm);
  run(stream, {kOp, OpKind::gradient_norm}, {args.sum_squares, args.loss_scale},
      {args.norm_out, args.coefficient, args.skip}, 4, args, HAWSER_BACKENDS(clip_coefficient));
}

}  // namespace hawser::ops
