#include "ops/embedding/embedding.h"

#include <cmath>

namespace hawser::ops {

namespace {

void expect_part(const char* op, std::int64_t first, std::int64_t total, std::int64_t rows) {
  if (total == 0 && first == 0) return;
  HAWSER_CHECK(first >= 0 && first < total, op, ": ", rows, " rows from ", first, " of ", total);
}

}  // namespace

void embedding_forward(Stream& stream, const EmbeddingForward& args) {
  constexpr auto kOp = "embedding_forward";
  HAWSER_CHECK(args.table.rank() == 2 && args.ids.rank() == 1, kOp, ": table must be a matrix and ids a vector");
  expect(kOp, "ids", args.ids, {DType::i32}, args.ids.shape());
  expect(kOp, "table", args.table, {DType::f32, DType::bf16}, args.table.shape());
  expect(kOp, "y", args.y, {args.table.dtype()}, {args.ids.size(0), args.table.size(1)}, Rows::padded);
  expect_apart(kOp, args.y, args.table);
  expect_apart(kOp, args.y, args.ids);
  HAWSER_CHECK(std::isfinite(args.scale), kOp, ": scale is ", args.scale);
  expect_part(kOp, args.first_row, args.total_rows, args.table.size(0));
  run(stream, {kOp, OpKind::embedding}, {args.ids, args.table}, {args.y},
      args.scale == 1 ? 0 : static_cast<double>(args.y.elements()), args, HAWSER_BACKENDS(embedding_forward));
}

void embedding_backward(Stream& stream, const EmbeddingBackward& args) {
  constexpr auto kOp = "embedding_backward";
  HAWSER_CHECK(args.dtable.rank() == 2 && args.ids.rank() == 1, kOp, ": dtable must be a matrix and ids a vector");
  expect(kOp, "ids", args.ids, {DType::i32}, args.ids.shape());
  expect(kOp, "dtable", args.dtable, {DType::f32, DType::bf16}, args.dtable.shape());
  expect(kOp, "dy", args.dy, {DType::f32, DType::bf16}, {args.ids.size(0), args.dtable.size(1)}, Rows::padded);
  expect_apart(kOp, args.dtable, args.dy);
  expect_apart(kOp, args.dtable, args.ids);
  HAWSER_CHECK(std::isfinite(args.scale), kOp, ": scale is ", args.scale);
  expect_part(kOp, args.first_row, args.total_rows, args.dtable.size(0));
  run(stream, {kOp, OpKind::embedding}, {args.ids, args.dy, args.accumulate ? args.dtable : TensorView()},
      {args.dtable}, static_cast<double>(args.dy.elements()), args, HAWSER_BACKENDS(embedding_backward));
}

}  // namespace hawser::ops
