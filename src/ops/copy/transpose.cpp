#include "ops/copy/transpose.h"

namespace hawser::ops {

void transpose(Stream& stream, const Transpose& args) {
  HAWSER_CHECK(args.x.rank() == 2 || args.x.rank() == 3, "transpose: x is no matrix: ", args.x.text());
  Shape exchanged = args.x.shape();
  std::swap(exchanged[exchanged.rank() - 2], exchanged[exchanged.rank() - 1]);
  expect("transpose", "x", args.x, {DType::f32, DType::bf16, DType::i32, DType::u8, DType::f8e4m3, DType::f8e5m2},
         args.x.shape());
  expect("transpose", "y", args.y, {args.x.dtype()}, exchanged);
  HAWSER_CHECK(args.x.dense() && args.y.dense(), "transpose: a matrix has gaps");
  expect_apart("transpose", args.x, args.y);
  run(stream, {"transpose", OpKind::copy}, {args.x}, {args.y}, 0, args, HAWSER_BACKENDS(transpose));
}

}  // namespace hawser::ops
