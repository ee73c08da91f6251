#include "ops/ema/ema.h"

namespace hawser::ops {

void ema(Stream& stream, const Ema& args) {
  constexpr auto kOp = "ema";
  HAWSER_CHECK(args.weight.rank() == 1, kOp, ": weight must be a vector");
  const Shape shape = args.weight.shape();
  expect(kOp, "weight", args.weight, {DType::f32, DType::bf16}, shape);
  expect(kOp, "average", args.average, {DType::f32}, shape);
  expect(kOp, "updates", args.updates, {DType::i32}, {1});
  if (!args.skip.empty()) expect(kOp, "skip", args.skip, {DType::i32}, {1});
  for (const TensorView& view : {args.weight, args.updates, args.skip}) expect_apart(kOp, args.average, view);
  HAWSER_CHECK(args.decay >= 0 && args.decay < 1, kOp, ": decay ", args.decay);
  run(stream, {kOp, OpKind::optimizer}, {args.weight, args.average, args.updates, args.skip}, {args.average},
      3.0 * static_cast<double>(shape.elements()), args, HAWSER_BACKENDS(ema));
}

}  // namespace hawser::ops
