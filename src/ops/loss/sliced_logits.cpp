#include "ops/loss/sliced_logits.h"

#include <cmath>

namespace hawser::ops {

namespace {

void expect_columns(const char* op, std::int64_t first, std::int64_t total, std::int64_t columns) {
  HAWSER_CHECK(columns > 0 && first >= 0 && first < total, op, ": ", columns, " columns from ", first, " of ", total);
}

void expect_bias_and_cap(const char* op, const TensorView& bias, std::int64_t columns, double softcap) {
  if (!bias.empty()) expect(op, "bias", bias, {DType::f32, DType::bf16}, {columns});
  HAWSER_CHECK(softcap >= 0 && std::isfinite(softcap), op, ": softcap is ", softcap);
}

}  // namespace

void logit_statistics(Stream& stream, const LogitStatistics& args) {
  const char* const op = "logit_statistics";
  expect_matrix(op, "logits", args.logits);
  const std::int64_t rows = args.logits.size(0), columns = args.logits.size(1);
  expect(op, "logits", args.logits, {DType::f32}, args.logits.shape());
  expect(op, "labels", args.labels, {DType::i32}, {rows});
  expect(op, "statistics", args.statistics, {DType::f32}, {3, rows});
  for (const TensorView& read : {args.logits, args.bias, args.labels}) expect_apart(op, read, args.statistics);
  expect_columns(op, args.first_column, args.total_columns, columns);
  expect_bias_and_cap(op, args.bias, columns, args.softcap);
  run(stream, {op, OpKind::loss}, {args.logits, args.bias, args.labels}, {args.statistics},
      2.0 * static_cast<double>(args.logits.elements()), args, HAWSER_BACKENDS(logit_statistics));
}

void combine_statistics(Stream& stream, const CombineStatistics& args) {
  const char* const op = "combine_statistics";
  expect_matrix(op, "parts", args.parts);
  const std::int64_t ranks = args.parts.size(0) / 3, rows = args.parts.size(1);
  HAWSER_CHECK(ranks > 0, op, ": statistics of no rank");
  expect(op, "parts", args.parts, {DType::f32}, {3 * ranks, rows});
  expect(op, "statistics", args.statistics, {DType::f32}, {3, rows});
  expect_apart(op, args.parts, args.statistics);
  run(stream, {op, OpKind::loss}, {args.parts}, {args.statistics}, 2.0 * static_cast<double>(args.parts.elements()),
      args, HAWSER_BACKENDS(combine_statistics));
}

void logit_gradients(Stream& stream, const LogitGradients& args) {
  const char* const op = "logit_gradients";
  expect_matrix(op, "logits", args.logits);
  const std::int64_t rows = args.logits.size(0);
  expect(op, "logits", args.logits, {DType::f32}, args.logits.shape());
  expect(op, "labels", args.labels, {DType::i32}, {rows});
  expect(op, "statistics", args.statistics, {DType::f32}, {3, rows});
  expect(op, "loss_sum", args.loss_sum, {DType::f32}, {2});
  expect_columns(op, args.first_column, args.total_columns, args.logits.size(1));
  expect_bias_and_cap(op, args.bias, args.logits.size(1), args.softcap);
  if (!args.gradients.empty()) {
    expect(op, "scale", args.scale, {DType::f32}, {1});
    expect(op, "gradients", args.gradients, {DType::f32, DType::bf16}, args.logits.shape());
    expect_apart_or_same(op, args.gradients, args.logits);
    for (const TensorView& view : {args.bias, args.labels, args.statistics, args.loss_sum}) {
      expect_apart(op, args.gradients, view);
    }
  }
  run(stream, {op, OpKind::loss},
      {args.logits, args.bias, args.labels, args.statistics, args.gradients.empty() ? TensorView() : args.scale,
       args.loss_sum},
      {args.loss_sum, args.gradients}, 2.0 * static_cast<double>(args.logits.elements()), args,
      HAWSER_BACKENDS(logit_gradients));
}

}  // namespace hawser::ops
