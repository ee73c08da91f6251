// `update`: one step of AdamW, Lion or SGD on a range of elements, with weights and states in float32 or bf16.
//
// Example: Lion with learning rate 0.1, betas 0.9 and 0.99, no weight decay: weight 1, first 0.5 and gradient -2 become
// weight 0.9, since 0.9 * 0.5 - 0.1 * 2 = 0.25 is positive, and first 0.99 * 0.5 - 0.01 * 2 = 0.475.
//
//   g = gradient * coefficient
//
//   adamw   weight *= 1 - learning_rate * weight_decay
//           first   = beta1 * first + (1 - beta1) * g
//           second  = beta2 * second + (1 - beta2) * g^2
//           weight -= learning_rate / bias_correction1 * first / (sqrt(second / bias_correction2) + epsilon)
//   lion    weight *= 1 - learning_rate * weight_decay
//           weight -= learning_rate * sign(beta1 * first + (1 - beta1) * g)
//           first   = beta2 * first + (1 - beta2) * g
//   sgd     g      += weight_decay * weight
//           first   = momentum * first + g
//           weight -= learning_rate * (nesterov ? g + momentum * first : first)
//
//   compute_weight = weight, as it is stored
//
// weight [n] float32 or bf16; first, second [n] float32 or bf16, of one dtype: lion has no second, and sgd without
// momentum no state. They are updated in place. gradient [n] float32, not modified. compute_weight [n] float32 or bf16,
// optional. coefficient [1] float32, optional (default 1). skip [1] int32, optional: if it is not 0, nothing changes.
// hyper: one AdamHyper (ops/adamw/adamw.h), of which lion and sgd read the learning rate. sign(0) is 0. What is stored
// in bf16 is rounded once, after the step, as `rounding` says. All views are disjoint.
// In float32, ops::adamw computes the same as `adamw` here, faster and with amaxes.
// Source: Loshchilov and Hutter, 2019; Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023
// (arXiv 2302.06675, algorithm 2); torch.optim.SGD with dampening 0.
#pragma once

#include "ops/run_op.h"
#include "ops/update/rounding.h"

namespace hawser::ops {

enum class UpdateRule { adamw, lion, sgd };

struct Update {
  UpdateRule rule = UpdateRule::adamw;
  TensorView weight, gradient;
  TensorView first, second;
  TensorView compute_weight;
  TensorView hyper;
  TensorView coefficient;
  TensorView skip;
  StochasticRounding rounding = {};
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1.0e-8;  // adamw, lion
  double momentum = 0;                                 // sgd
  bool nesterov = false;                               // sgd
  double weight_decay = 0.0;
};
void update(Stream& stream, const Update& args);

HAWSER_BACKENDS_OF(update, Update);

}  // namespace hawser::ops
