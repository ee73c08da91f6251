#include "ops/dropout/dropout.h"

namespace hawser::ops {

void dropout(Stream& stream, const Dropout& args) {
  constexpr auto kOp = "dropout";
  HAWSER_CHECK(args.x.rank() == 2, kOp, ": x must be a matrix");
  HAWSER_CHECK(args.probability >= 0 && args.probability < 1, kOp, ": probability ", args.probability,
               " is not in [0, 1)");
  expect(kOp, "x", args.x, {DType::f32, DType::bf16}, args.x.shape(), Rows::padded);
  expect(kOp, "y", args.y, {args.x.dtype()}, args.x.shape(), Rows::padded);
  expect(kOp, "step", args.random.step, {DType::i32}, {1});
  expect(kOp, "rows", args.random.rows, {DType::i32}, {args.x.size(0), 2});
  expect_apart_or_same(kOp, args.x, args.y);
  run(stream, {kOp, OpKind::elementwise},
      {args.x, args.random.step, args.random.rows, args.accumulate ? args.y : TensorView()}, {args.y},
      static_cast<double>(args.x.elements()), args, HAWSER_BACKENDS(dropout));
}

}  // namespace hawser::ops
