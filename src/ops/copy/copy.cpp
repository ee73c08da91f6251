#include "ops/copy/copy.h"

#include "ops/copy/add.h"
#include "ops/copy/permute_rows.h"
#include "tensor/fp8.h"

namespace hawser::ops {

void copy(Stream& stream, const Copy& args) {
  const auto all = {DType::f32, DType::bf16, DType::i32, DType::i64, DType::u8, DType::f8e4m3, DType::f8e5m2};
  expect("copy", "x", args.x, all, args.x.shape(), Rows::padded);
  expect("copy", "y", args.y, {args.x.dtype()}, args.x.shape(), Rows::padded);
  expect_apart("copy", args.x, args.y);
  run(stream, {"copy", OpKind::copy}, {args.x}, {args.y}, 0, args, HAWSER_BACKENDS(copy));
}

void cast(Stream& stream, const Cast& args) {
  expect("cast", "x", args.x, {DType::f32, DType::bf16}, args.x.shape(), Rows::padded);
  expect("cast", "y", args.y, {DType::f32, DType::bf16}, args.x.shape(), Rows::padded);
  expect_apart_or_same("cast", args.x, args.y);
  run(stream, {"cast", OpKind::copy}, {args.x}, {args.y}, 0, args, HAWSER_BACKENDS(cast));
}

void fill(Stream& stream, const Fill& args) {
  expect("fill", "y", args.y, {DType::f32, DType::bf16, DType::i32, DType::f8e4m3, DType::f8e5m2}, args.y.shape(),
         Rows::padded);
  HAWSER_CHECK(!is_fp8(args.y.dtype()) || (args.value == 0 && args.y.dense()), "fill: FP8 takes zeros, without gaps");
  HAWSER_CHECK(args.y.dtype() != DType::i32 || static_cast<double>(static_cast<std::int32_t>(args.value)) == args.value,
               "fill: ", args.value, " is not an int32");
  run(stream, {"fill", OpKind::copy}, {}, {args.y}, 0, args, HAWSER_BACKENDS(fill));
}

void add(Stream& stream, const Add& args) {
  expect("add", "a", args.a, {DType::f32, DType::bf16}, args.y.shape(), Rows::padded);
  expect("add", "b", args.b, {DType::f32, DType::bf16}, args.y.shape(), Rows::padded);
  expect("add", "y", args.y, {DType::f32, DType::bf16}, args.y.shape(), Rows::padded);
  expect_apart_or_same("add", args.y, args.a);
  expect_apart_or_same("add", args.y, args.b);
  run(stream, {"add", OpKind::elementwise}, {args.a, args.b}, {args.y}, static_cast<double>(args.y.elements()), args,
      HAWSER_BACKENDS(add));
}

void gather_rows(Stream& stream, const GatherRows& args) {
  HAWSER_CHECK(args.x.rank() == 2 && args.index.rank() == 1, "gather_rows: x must be a matrix and index a vector");
  const Shape shape{args.index.size(0), args.x.size(1)};
  expect("gather_rows", "x", args.x, {DType::f32, DType::bf16}, args.x.shape(), Rows::padded);
  expect("gather_rows", "index", args.index, {DType::i32}, args.index.shape());
  expect("gather_rows", "y", args.y, {args.x.dtype()}, shape, Rows::padded);
  expect_apart("gather_rows", args.x, args.y);
  expect_apart("gather_rows", args.index, args.y);
  run(stream, {"gather_rows", OpKind::copy}, {args.x, args.index}, {args.y}, 0, args, HAWSER_BACKENDS(gather_rows));
}

void scatter_rows(Stream& stream, const ScatterRows& args) {
  HAWSER_CHECK(args.y.rank() >= 2 && args.index.rank() == 1,
               "scatter_rows: y must have at least 2 dims, and index must be a vector");
  Shape shape = args.y.shape();
  shape[0] = args.index.size(0);
  expect("scatter_rows", "x", args.x, {DType::f32, DType::bf16}, shape, Rows::padded);
  expect("scatter_rows", "index", args.index, {DType::i32}, args.index.shape());
  expect("scatter_rows", "y", args.y, {args.x.dtype(), DType::f32}, args.y.shape(), Rows::padded);
  expect_apart("scatter_rows", args.x, args.y);
  expect_apart("scatter_rows", args.index, args.y);
  run(stream, {"scatter_rows", OpKind::copy}, {args.x, args.index, args.accumulate ? args.y : TensorView()}, {args.y},
      0, args, HAWSER_BACKENDS(scatter_rows));
}

}  // namespace hawser::ops
