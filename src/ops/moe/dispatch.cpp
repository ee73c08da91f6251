#include "ops/moe/dispatch.h"

#include <limits>

#include "tensor/fp8.h"

namespace hawser::ops {

namespace {

// Two FP8 values as one of 16 bits. Without weights the op copies bits.
TensorView in_pairs(const char* op, const TensorView& view) {
  HAWSER_CHECK(view.dense() && view.size(1) % 2 == 0, op, ": FP8 rows must be dense and have pairs: ", view.text());
  return {view.raw(), DType::bf16, {view.size(0), view.size(1) / 2}, view.device()};
}

}  // namespace

void expert_plan(Stream& stream, const ExpertPlan& args) {
  constexpr auto kOp = "expert_plan";
  expect_matrix(kOp, "experts", args.experts);
  HAWSER_CHECK(args.offsets.rank() == 1 && args.offsets.size(0) > 1, kOp, ": offsets ", args.offsets.shape().text());
  const std::int64_t tokens = args.experts.size(0), per_token = args.experts.size(1);
  const std::int64_t experts = args.offsets.size(0) - 1, rows = expert_rows(tokens, per_token, experts);
  HAWSER_CHECK(rows <= std::numeric_limits<std::int32_t>::max(), kOp, ": ", rows, " rows");
  expect(kOp, "experts", args.experts, {DType::i32}, {tokens, per_token});
  expect(kOp, "offsets", args.offsets, {DType::i32}, {experts + 1});
  expect(kOp, "rows", args.rows, {DType::i32}, {tokens, per_token});
  expect(kOp, "assignments", args.assignments, {DType::i32}, {rows});
  for (const TensorView& view : {args.offsets, args.rows, args.assignments}) expect_apart(kOp, view, args.experts);
  expect_apart(kOp, args.offsets, args.rows);
  expect_apart(kOp, args.offsets, args.assignments);
  expect_apart(kOp, args.rows, args.assignments);
  run(stream, {kOp, OpKind::elementwise}, {args.experts}, {args.offsets, args.rows, args.assignments},
      static_cast<double>(args.experts.elements()), args, HAWSER_BACKENDS(expert_plan));
}

void dispatch_rows(Stream& stream, const DispatchRows& args) {
  constexpr auto kOp = "dispatch_rows";
  expect_matrix(kOp, "x", args.x);
  HAWSER_CHECK(args.assignments.rank() == 1 && args.offsets.rank() == 1 && args.offsets.size(0) > 1, kOp,
               ": assignments ", args.assignments.shape().text(), ", offsets ", args.offsets.shape().text());
  HAWSER_CHECK(args.per_token >= 1, kOp, ": ", args.per_token, " experts per token");
  if (is_fp8(args.x.dtype()) && args.weights.empty()) {
    expect(kOp, "y", args.y, {args.x.dtype()}, {args.assignments.size(0), args.x.size(1)});
    DispatchRows pairs = args;
    pairs.x = in_pairs(kOp, args.x);
    pairs.y = in_pairs(kOp, args.y);
    return dispatch_rows(stream, pairs);
  }
  expect(kOp, "x", args.x, {DType::f32, DType::bf16}, args.x.shape(), Rows::padded);
  expect(kOp, "assignments", args.assignments, {DType::i32}, args.assignments.shape());
  expect(kOp, "offsets", args.offsets, {DType::i32}, args.offsets.shape());
  expect(kOp, "y", args.y, {args.x.dtype()}, {args.assignments.size(0), args.x.size(1)}, Rows::padded);
  if (!args.weights.empty()) expect(kOp, "weights", args.weights, {DType::f32}, {args.x.size(0), args.per_token});
  for (const TensorView& view : {args.x, args.assignments, args.offsets, args.weights}) {
    expect_apart(kOp, args.y, view);
  }
  run(stream, {kOp, OpKind::copy}, {args.x, args.assignments, args.offsets, args.weights}, {args.y},
      args.weights.empty() ? 0.0 : static_cast<double>(args.x.elements() * args.per_token), args,
      HAWSER_BACKENDS(dispatch_rows));
}

void combine_rows(Stream& stream, const CombineRows& args) {
  constexpr auto kOp = "combine_rows";
  expect_matrix(kOp, "x", args.x);
  expect_matrix(kOp, "rows", args.rows);
  const Shape assignments = args.rows.shape(), shape{args.rows.size(0), args.x.size(1)};
  expect(kOp, "x", args.x, {DType::f32, DType::bf16}, args.x.shape(), Rows::padded);
  expect(kOp, "rows", args.rows, {DType::i32}, assignments);
  if (!args.weights.empty()) expect(kOp, "weights", args.weights, {DType::f32}, assignments);
  if (!args.residual.empty()) expect(kOp, "residual", args.residual, {DType::f32, DType::bf16}, shape, Rows::padded);
  expect(kOp, "y", args.y, {DType::f32, DType::bf16}, shape, Rows::padded);
  for (const TensorView& view : {args.x, args.rows, args.weights}) expect_apart(kOp, args.y, view);
  expect_apart_or_same(kOp, args.y, args.residual);
  run(stream, {kOp, OpKind::elementwise}, {args.x, args.rows, args.weights, args.residual}, {args.y},
      2.0 * static_cast<double>(args.y.elements() * assignments[1]), args, HAWSER_BACKENDS(combine_rows));
}

void weighted_rows_backward(Stream& stream, const WeightedRowsBackward& args) {
  constexpr auto kOp = "weighted_rows_backward";
  expect_matrix(kOp, "x", args.x);
  expect_matrix(kOp, "rows", args.rows);
  const Shape assignments = args.rows.shape();
  expect(kOp, "x", args.x, {DType::f32, DType::bf16}, args.x.shape(), Rows::padded);
  expect(kOp, "dx", args.dx, {args.x.dtype()}, args.x.shape(), Rows::padded);
  expect(kOp, "rows", args.rows, {DType::i32}, assignments);
  expect(kOp, "weights", args.weights, {DType::f32}, assignments);
  expect(kOp, "dweights", args.dweights, {DType::f32}, assignments);
  for (const TensorView& view : {args.x, args.rows, args.weights, args.dweights}) expect_apart(kOp, args.dx, view);
  for (const TensorView& view : {args.x, args.rows, args.weights}) expect_apart(kOp, args.dweights, view);
  run(stream, {kOp, OpKind::elementwise}, {args.x, args.dx, args.rows, args.weights}, {args.dx, args.dweights},
      3.0 * static_cast<double>(assignments.elements() * args.x.size(1)), args,
      HAWSER_BACKENDS(weighted_rows_backward));
}

}  // namespace hawser::ops
