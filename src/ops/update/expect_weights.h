// `expect_weights`: checks of the arguments that updates have in common. Internal to ops of optimizers.
#pragma once

#include "ops/adamw/adamw.h"
#include "ops/update/rounding.h"

namespace hawser::ops {

// The weights and the copy for layers, [n] each; skip and the rounding's step, int32 [1].
template <class Args>
void expect_weights(const char* op, const Args& args) {
  HAWSER_CHECK(args.weight.rank() == 1, op, ": weight must be a vector");
  const Shape shape = args.weight.shape();
  expect(op, "weight", args.weight, {DType::f32, DType::bf16}, shape);
  if (!args.compute_weight.empty()) {
    expect(op, "compute_weight", args.compute_weight, {DType::f32, DType::bf16}, shape);
  }
  if (!args.skip.empty()) expect(op, "skip", args.skip, {DType::i32}, {1});
  const StochasticRounding& rounding = args.rounding;
  if (!rounding.step.empty()) expect(op, "step", rounding.step, {DType::i32}, {1});
  const RoundingNoise& noise = rounding.noise;
  HAWSER_CHECK(noise.first >= 0 && noise.part >= 1 && noise.whole >= noise.part && noise.begin >= 0, op,
               ": elements from ", noise.first, ", ", noise.part, " of ", noise.whole);
}

// Besides: the gradient [n], hyper (ops/adamw/adamw.h) and the coefficient [1], float32.
template <class Args>
void expect_update(const char* op, const Args& args) {
  expect_weights(op, args);
  expect(op, "gradient", args.gradient, {DType::f32}, args.weight.shape());
  expect(op, "hyper", args.hyper, {DType::f32}, {kAdamHyperFields});
  if (!args.coefficient.empty()) expect(op, "coefficient", args.coefficient, {DType::f32}, {1});
}

}  // namespace hawser::ops
