// Adafactor in four ops: AdamW's second moment as one value for each row and column of a matrix.
//
// Example: the squares [[1, 3], [5, 7]] of a gradient have the row means 2 and 6, the column means 3 and 5, and the
// mean 4. Their estimate is rows x columns / mean: [[1.5, 2.5], [4.5, 7.5]].
//
//   adafactor_hyper      beta = 1 - n^-0.8,   rate = learning_rate, at most 1 / sqrt(n) with relative_step
//   adafactor_sums       row_sums[r] += g^2 + 1e-30 of row r,   column_sums[c] += the same of column c
//   adafactor_moments    row[r]    = beta * row[r] + (1 - beta) * row_sums[r] / columns
//                        column[c] = beta * column[c] + (1 - beta) * column_sums[c] / rows
//                        mean      = beta * mean + (1 - beta) * sum of row_sums / (rows * columns)
//   adafactor_direction  u = g / sqrt(row[r] / mean) / sqrt(column[c])
//                        without rows and columns: second = beta * second + (1 - beta) * (g^2 + 1e-30),
//                                                  u = g / sqrt(second)
//                        update_sum += sum of u^2,   weight_sum += sum of weight^2
//   adafactor_apply      rate *= max(1e-3, sqrt(weight_sum / elements)), with scale_parameter
//                        weight -= rate * weight_decay * weight
//                        weight -= rate * u / max(1, sqrt(update_sum / elements))
//
// with g = gradient * coefficient. A caller has a range of the elements of a matrix (a rank's shard); ranks add the
// sums between the ops. Source: Shazeer and Stern, 2018 (arXiv 1804.04235); transformers.Adafactor with beta1 None and
// clip_threshold 1, which has the mean of `row` where this has `mean`.
#pragma once

#include "ops/run_op.h"
#include "ops/update/rounding.h"

namespace hawser::ops {

constexpr std::int64_t kAdafactorHyperFields = 2;  // rate and beta

// hyper float32 [2]; learning_rate float32 [1]; step int32 [1]: the number n of updates so far, this one included.
struct AdafactorHyper {
  TensorView learning_rate, step;
  TensorView hyper;
  bool relative_step = false;
};
void adafactor_hyper(Stream& stream, const AdafactorHyper& args);

// Elements [first, first + n) of a matrix of `columns` columns. gradient float32 [n]. row_sums float32: of the rows
// that these elements are in, row first / columns being the first; column_sums float32 [columns]. Both are added to.
struct AdafactorSums {
  TensorView gradient, coefficient;
  TensorView row_sums, column_sums;
  std::int64_t first = 0, columns = 1;
};
void adafactor_sums(Stream& stream, const AdafactorSums& args);

// row [r], column [c], mean [1] float32, updated in place, unless skip, int32 [1], is not 0. row_sums [r] and
// column_sums [c]: of these. all_row_sums [rows]: of the complete matrix [rows, columns].
struct AdafactorMoments {
  TensorView row, column, mean;
  TensorView row_sums, column_sums, all_row_sums;
  TensorView hyper, skip;
  std::int64_t columns = 1;
};
void adafactor_moments(Stream& stream, const AdafactorMoments& args);

// gradient float32 [n]: u is written to it. Either row, of the rows that these elements are in, column [columns] and
// mean [1], or `second` [n], which is updated in place. update_sum float32 [1] is added to, and weight_sum, if there is
// one: it is that of weight [n], float32 or bf16. Nothing changes if skip is not 0.
struct AdafactorDirection {
  TensorView gradient, coefficient, weight;
  TensorView row, column, mean, second;
  TensorView update_sum, weight_sum;
  TensorView hyper, skip;
  std::int64_t first = 0, columns = 1;
};
void adafactor_direction(Stream& stream, const AdafactorDirection& args);

// weight [n] float32 or bf16, rounded as ops/update/rounding.h says, updated in place; direction float32 [n].
// compute_weight [n] float32 or bf16, optional. update_sum, weight_sum float32 [1], of the complete matrix of
// `elements`; weight_sum is empty without scale_parameter.
struct AdafactorApply {
  TensorView weight, direction, compute_weight;
  TensorView update_sum, weight_sum;
  TensorView hyper, skip;
  StochasticRounding rounding = {};
  std::int64_t elements = 1;
  double weight_decay = 0;
};
void adafactor_apply(Stream& stream, const AdafactorApply& args);

HAWSER_BACKENDS_OF(adafactor_hyper, AdafactorHyper);
HAWSER_BACKENDS_OF(adafactor_sums, AdafactorSums);
HAWSER_BACKENDS_OF(adafactor_moments, AdafactorMoments);
HAWSER_BACKENDS_OF(adafactor_direction, AdafactorDirection);
HAWSER_BACKENDS_OF(adafactor_apply, AdafactorApply);

constexpr float kAdafactorSquare = 1e-30f, kAdafactorScale = 1e-3f;

// What adafactor_apply multiplies weight and u by.
struct AdafactorRates {
  float keep, update;
};
// `weight_sum` is negative without scale_parameter. `root`: the square root of a float32.
template <class Root>
constexpr AdafactorRates adafactor_rates(float rate, float update_sum, float weight_sum, float elements, float decay,
                                         const Root& root) {
  const float scale = weight_sum < 0 ? 1.0f : root(weight_sum / elements);
  const float scaled = weight_sum < 0 ? rate : rate * (scale > kAdafactorScale ? scale : kAdafactorScale);
  const float rms = root(update_sum / elements);
  return {1.0f - scaled * decay, scaled / (rms > 1.0f ? rms : 1.0f)};
}

}  // namespace hawser::ops
