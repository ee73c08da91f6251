#include "ops/adamw/adamw.h"

#include <cmath>

namespace hawser::ops {

AdamHyper adam_hyper(double learning_rate, double beta1, double beta2, std::int64_t step) {
  HAWSER_CHECK(step >= 1, "adamw: step must be at least 1, not ", step);
  return {.learning_rate = static_cast<float>(learning_rate),
          .bias_correction1 = static_cast<float>(1.0 - std::pow(beta1, static_cast<double>(step))),
          .bias_correction2 = static_cast<float>(1.0 - std::pow(beta2, static_cast<double>(step)))};
}

void adam_hyper(Stream& stream, const AdamHyperOfStep& args) {
  constexpr auto kOp = "adam_hyper";
  expect(kOp, "learning_rate", args.learning_rate, {DType::f32}, {1});
  expect(kOp, "step", args.step, {DType::i32}, {1});
  expect(kOp, "hyper", args.hyper, {DType::f32}, {kAdamHyperFields});
  expect_apart(kOp, args.hyper, args.learning_rate);
  expect_apart(kOp, args.hyper, args.step);
  HAWSER_CHECK(args.beta1 >= 0 && args.beta1 < 1 && args.beta2 >= 0 && args.beta2 < 1, kOp, ": beta1 ", args.beta1,
               ", beta2 ", args.beta2);
  run(stream, {kOp, OpKind::optimizer}, {args.learning_rate, args.step}, {args.hyper}, 1, args,
      HAWSER_BACKENDS(adam_hyper));
}

void adamw(Stream& stream, const AdamW& args) {
  HAWSER_CHECK(args.weight.rank() == 1, "adamw: weight must be a vector");
  const Shape shape = args.weight.shape();
  expect("adamw", "weight", args.weight, {DType::f32}, shape);
  expect("adamw", "gradient", args.gradient, {DType::f32, DType::bf16}, shape);
  expect("adamw", "exp_avg", args.exp_avg, {DType::f32}, shape);
  expect("adamw", "exp_avg_sq", args.exp_avg_sq, {DType::f32}, shape);
  expect("adamw", "hyper", args.hyper, {DType::f32}, {kAdamHyperFields});
  if (!args.compute_weight.empty()) expect("adamw", "compute_weight", args.compute_weight, {DType::bf16}, shape);
  if (!args.coefficient.empty()) expect("adamw", "coefficient", args.coefficient, {DType::f32}, {1});
  if (!args.skip.empty()) expect("adamw", "skip", args.skip, {DType::i32}, {1});
  if (!args.amax.empty()) expect("adamw", "amax", args.amax, {DType::f32}, {args.amax.elements()});
  expect_matrices("adamw", args.matrices, args.amax.empty() ? 0 : args.amax.elements());
  const TensorView big[] = {args.weight, args.gradient, args.exp_avg, args.exp_avg_sq, args.compute_weight, args.amax};
  for (int i = 0; i < 6; ++i) {
    for (int j = 0; j < i; ++j) expect_apart("adamw", big[i], big[j]);
    for (const TensorView& view : {args.hyper, args.coefficient, args.skip}) expect_apart("adamw", big[i], view);
  }
  HAWSER_CHECK(args.beta1 >= 0 && args.beta1 < 1 && args.beta2 >= 0 && args.beta2 < 1 && args.epsilon > 0,
               "adamw: beta1 ", args.beta1, ", beta2 ", args.beta2, ", epsilon ", args.epsilon);
  run(stream, {"adamw", OpKind::optimizer},
      {args.weight, args.gradient, args.exp_avg, args.exp_avg_sq, args.hyper, args.coefficient, args.skip, args.amax},
      {args.weight, args.exp_avg, args.exp_avg_sq, args.compute_weight, args.amax},
      16.0 * static_cast<double>(shape.elements()), args, HAWSER_BACKENDS(adamw));
}

}  // namespace hawser::ops
