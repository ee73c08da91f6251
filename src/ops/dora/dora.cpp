#include "ops/dora/dora.h"

namespace hawser::ops {

void dora_row_squares(Stream& stream, const DoraRowSquares& args) {
  const char* const op = "dora_row_squares";
  expect_matrix(op, "w", args.w);
  expect_matrix(op, "b", args.b);
  const std::int64_t rows = args.w.size(0), rank = args.b.size(1);
  expect(op, "w", args.w, {DType::f32, DType::bf16}, args.w.shape());
  expect(op, "b", args.b, {DType::f32, DType::bf16}, {rows, rank});
  expect(op, "p", args.p, {DType::f32}, {rows, rank});
  expect(op, "q", args.q, {DType::f32}, {rank, rank});
  expect(op, "n", args.n, {DType::f32}, {rows});
  for (const TensorView& read : {args.w, args.b, args.p, args.q}) expect_apart(op, read, args.n);
  const double flops = static_cast<double>(rows) * static_cast<double>(2 * args.w.size(1) + 2 * rank * rank + 4 * rank);
  run(stream, {op, OpKind::norm}, {args.w, args.b, args.p, args.q}, {args.n}, flops, args,
      HAWSER_BACKENDS(dora_row_squares));
}

void scale_by_norms(Stream& stream, const ScaleByNorms& args) {
  const char* const op = "scale_by_norms";
  expect_matrix(op, "x", args.x);
  const std::int64_t columns = args.x.size(1);
  expect(op, "x", args.x, {DType::f32, DType::bf16}, args.x.shape(), Rows::padded);
  expect(op, "y", args.y, {args.x.dtype()}, args.x.shape(), Rows::padded);
  expect(op, "m", args.m, {DType::f32, DType::bf16}, {columns});
  expect(op, "n", args.n, {DType::f32}, {columns});
  expect_apart_or_same(op, args.x, args.y);
  for (const TensorView& read : {args.m, args.n}) expect_apart(op, read, args.y);
  const TensorView added = args.accumulate ? args.y : TensorView();
  run(stream, {op, OpKind::elementwise}, {args.x, args.m, args.n, added}, {args.y},
      static_cast<double>(args.x.elements()), args, HAWSER_BACKENDS(scale_by_norms));
}

void dora_magnitude_gradient(Stream& stream, const DoraMagnitudeGradient& args) {
  const char* const op = "dora_magnitude_gradient";
  expect_matrix(op, "dy", args.dy);
  const std::int64_t columns = args.dy.size(1);
  expect(op, "dy", args.dy, {DType::f32, DType::bf16}, args.dy.shape(), Rows::padded);
  expect(op, "u", args.u, {args.dy.dtype()}, args.dy.shape(), Rows::padded);
  expect(op, "n", args.n, {DType::f32}, {columns});
  expect(op, "dm", args.dm, {DType::f32, DType::bf16}, {columns});
  for (const TensorView& read : {args.dy, args.u, args.n}) expect_apart(op, read, args.dm);
  const TensorView added = args.accumulate ? args.dm : TensorView();
  run(stream, {op, OpKind::elementwise}, {args.dy, args.u, args.n, added}, {args.dm},
      2.0 * static_cast<double>(args.dy.elements()), args, HAWSER_BACKENDS(dora_magnitude_gradient));
}

}  // namespace hawser::ops
