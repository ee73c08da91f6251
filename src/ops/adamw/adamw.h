// `adamw`: one AdamW update (decoupled weight decay) of a flat range of elements.
//
//   g              = gradient * coefficient
//   weight        -= learning_rate * weight_decay * weight
//   exp_avg        = beta1 * exp_avg + (1 - beta1) * g
//   exp_avg_sq     = beta2 * exp_avg_sq + (1 - beta2) * g^2
//   weight        -= learning_rate / bias_correction1 * exp_avg / (sqrt(exp_avg_sq / bias_correction2) + epsilon)
//   compute_weight = bf16(weight)
//   amax[p]        = max(amax[p], |weight| of the elements of matrix p); NaN if one is NaN
//
// weight, exp_avg, exp_avg_sq [n] float32, updated in place; gradient [n] float32 or bf16, not modified. compute_weight
// [n] bf16, optional. coefficient [1] float32, optional (default 1). skip [1] int32, optional: if it is not 0, nothing
// changes but amax, which is then that of the weights as they are. amax [P] float32, optional: of `matrices`
// (ops/quantize/matrices.h), with the bits of ops::amax_of_matrices of the updated weights, in float32, if it is 0
// before. It costs no pass over memory. hyper: one AdamHyper as float32 [kAdamHyperFields], read when the kernel runs.
// All views are disjoint.
//
// adam_hyper: hyper = {learning_rate[0], 1 - beta1^n, 1 - beta2^n} with n = max(1, step[0]), in float64, rounded once;
// learning_rate float32 [1], step int32 [1]: the number of updates so far, this one included.
// Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019; torch.optim.AdamW.
#pragma once

#include <vector>

#include "ops/quantize/matrices.h"
#include "ops/run_op.h"

namespace hawser::ops {

// Values that change from step to step; stored on the device as float32 in this order.
struct AdamHyper {
  float learning_rate = 0;
  float bias_correction1 = 1;  // 1 - beta1^step, step counted from 1
  float bias_correction2 = 1;  // 1 - beta2^step
};
constexpr std::int64_t kAdamHyperFields = sizeof(AdamHyper) / sizeof(float);
AdamHyper adam_hyper(double learning_rate, double beta1, double beta2, std::int64_t step);  // on the host

struct AdamHyperOfStep {
  TensorView learning_rate, step;
  TensorView hyper;
  double beta1 = 0.9, beta2 = 0.95;
};
void adam_hyper(Stream& stream, const AdamHyperOfStep& args);

struct AdamW {
  TensorView weight, gradient, exp_avg, exp_avg_sq;
  TensorView compute_weight;
  TensorView hyper;
  TensorView coefficient;
  TensorView skip;
  TensorView amax = {};
  std::vector<EqualMatrices> matrices = {};  // with amax
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1.0e-8, weight_decay = 0.0;
};
void adamw(Stream& stream, const AdamW& args);

// Constants of one update, computed once in float64 by the backends.
struct AdamStep {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, keep, step_size, inverse_root_correction2, epsilon, coefficient;
};
HAWSER_BACKENDS_OF(adam_hyper, AdamHyperOfStep);
HAWSER_BACKENDS_OF(adamw, AdamW);

}  // namespace hawser::ops
