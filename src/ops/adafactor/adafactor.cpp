#include "ops/adafactor/adafactor.h"

#include "ops/update/expect_weights.h"

namespace hawser::ops {

namespace {

void expect_hyper(const char* op, const TensorView& hyper, const TensorView& skip) {
  expect(op, "hyper", hyper, {DType::f32}, {kAdafactorHyperFields});
  if (!skip.empty()) expect(op, "skip", skip, {DType::i32}, {1});
}

// Rows that elements [first, first + n) are in.
std::int64_t rows_of(std::int64_t first, std::int64_t n, std::int64_t columns) {
  return n == 0 ? 0 : (first + n - 1) / columns - first / columns + 1;
}

}  // namespace

void adafactor_hyper(Stream& stream, const AdafactorHyper& args) {
  constexpr auto kOp = "adafactor_hyper";
  expect(kOp, "learning_rate", args.learning_rate, {DType::f32}, {1});
  expect(kOp, "step", args.step, {DType::i32}, {1});
  expect(kOp, "hyper", args.hyper, {DType::f32}, {kAdafactorHyperFields});
  expect_apart(kOp, args.hyper, args.learning_rate);
  run(stream, {kOp, OpKind::optimizer}, {args.learning_rate, args.step}, {args.hyper}, 1, args,
      HAWSER_BACKENDS(adafactor_hyper));
}

void adafactor_sums(Stream& stream, const AdafactorSums& args) {
  constexpr auto kOp = "adafactor_sums";
  const std::int64_t n = args.gradient.elements();
  HAWSER_CHECK(args.first >= 0 && args.columns >= 1, kOp, ": elements from ", args.first, " of ", args.columns,
               " columns");
  expect(kOp, "gradient", args.gradient, {DType::f32}, {n});
  if (!args.coefficient.empty()) expect(kOp, "coefficient", args.coefficient, {DType::f32}, {1});
  expect(kOp, "row_sums", args.row_sums, {DType::f32}, {rows_of(args.first, n, args.columns)});
  expect(kOp, "column_sums", args.column_sums, {DType::f32}, {args.columns});
  expect_apart(kOp, args.row_sums, args.column_sums);
  for (const TensorView& sums : {args.row_sums, args.column_sums}) expect_apart(kOp, sums, args.gradient);
  run(stream, {kOp, OpKind::optimizer}, {args.gradient, args.coefficient, args.row_sums, args.column_sums},
      {args.row_sums, args.column_sums}, 5.0 * static_cast<double>(n), args, HAWSER_BACKENDS(adafactor_sums));
}

void adafactor_moments(Stream& stream, const AdafactorMoments& args) {
  constexpr auto kOp = "adafactor_moments";
  const Shape rows = args.row.shape(), columns = args.column.shape();
  expect(kOp, "row", args.row, {DType::f32}, {rows.elements()});
  expect(kOp, "column", args.column, {DType::f32}, {columns.elements()});
  expect(kOp, "mean", args.mean, {DType::f32}, {1});
  expect(kOp, "row_sums", args.row_sums, {DType::f32}, rows);
  expect(kOp, "column_sums", args.column_sums, {DType::f32}, columns);
  expect(kOp, "all_row_sums", args.all_row_sums, {DType::f32}, {args.all_row_sums.elements()});
  expect_hyper(kOp, args.hyper, args.skip);
  const TensorView states[] = {args.row, args.column, args.mean};
  for (int i = 0; i < 3; ++i) {
    for (int j = 0; j < i; ++j) expect_apart(kOp, states[i], states[j]);
    for (const TensorView& sums : {args.row_sums, args.column_sums, args.all_row_sums, args.hyper}) {
      expect_apart(kOp, states[i], sums);
    }
  }
  run(stream, {kOp, OpKind::optimizer},
      {args.row, args.column, args.mean, args.row_sums, args.column_sums, args.all_row_sums, args.hyper, args.skip},
      {args.row, args.column, args.mean}, 4.0 * static_cast<double>(rows.elements() + columns.elements()), args,
      HAWSER_BACKENDS(adafactor_moments));
}

void adafactor_direction(Stream& stream, const AdafactorDirection& args) {
  constexpr auto kOp = "adafactor_direction";
  const std::int64_t n = args.gradient.elements();
  expect(kOp, "gradient", args.gradient, {DType::f32}, {n});
  if (!args.coefficient.empty()) expect(kOp, "coefficient", args.coefficient, {DType::f32}, {1});
  if (!args.weight_sum.empty()) expect(kOp, "weight", args.weight, {DType::f32, DType::bf16}, {n});
  HAWSER_CHECK(args.second.empty() != args.row.empty(), kOp, ": either rows and columns, or second");
  if (args.second.empty()) {
    expect(kOp, "row", args.row, {DType::f32}, {rows_of(args.first, n, args.columns)});
    expect(kOp, "column", args.column, {DType::f32}, {args.columns});
    expect(kOp, "mean", args.mean, {DType::f32}, {1});
  } else {
    expect(kOp, "second", args.second, {DType::f32}, {n});
    expect_apart(kOp, args.second, args.gradient);
  }
  expect(kOp, "update_sum", args.update_sum, {DType::f32}, {1});
  if (!args.weight_sum.empty()) expect(kOp, "weight_sum", args.weight_sum, {DType::f32}, {1});
  expect_apart(kOp, args.update_sum, args.weight_sum);
  expect_hyper(kOp, args.hyper, args.skip);
  run(stream, {kOp, OpKind::optimizer},
      {args.gradient, args.coefficient, args.weight_sum.empty() ? TensorView() : args.weight, args.row, args.column,
       args.mean, args.second, args.update_sum, args.weight_sum, args.hyper, args.skip},
      {args.gradient, args.second, args.update_sum, args.weight_sum}, 10.0 * static_cast<double>(n), args,
      HAWSER_BACKENDS(adafactor_direction));
}

void adafactor_apply(Stream& stream, const AdafactorApply& args) {
  constexpr auto kOp = "adafactor_apply";
  const Shape shape = args.direction.shape();
  expect_weights(kOp, args);
  expect(kOp, "direction", args.direction, {DType::f32}, args.weight.shape());
  expect(kOp, "update_sum", args.update_sum, {DType::f32}, {1});
  if (!args.weight_sum.empty()) expect(kOp, "weight_sum", args.weight_sum, {DType::f32}, {1});
  expect_hyper(kOp, args.hyper, args.skip);
  expect_apart(kOp, args.weight, args.direction);
  expect_apart(kOp, args.compute_weight, args.weight);
  expect_apart(kOp, args.compute_weight, args.direction);
  HAWSER_CHECK(args.elements >= shape.elements(), kOp, ": ", shape.elements(), " of ", args.elements, " elements");
  run(stream, {kOp, OpKind::optimizer},
      {args.weight, args.direction, args.update_sum, args.weight_sum, args.hyper, args.skip, args.rounding.step},
      {args.weight, args.compute_weight}, 3.0 * static_cast<double>(shape.elements()), args,
      HAWSER_BACKENDS(adafactor_apply));
}

}  // namespace hawser::ops
