// `make_elementwise`: AdamW, Lion or SGD with weights and states in float32 or bf16; formulas in ops/update/update.h.
//
//   make_elementwise({.rule = ops::UpdateRule::lion, .state = DType::bf16, .beta1 = 0.9, .beta2 = 0.99})
//
// Weights are in FlatSpec::stored. What is stored in bf16 is rounded stochastically (ops/update/rounding.h). Weight
// decay applies to parameters with nn::Param::decay. Slots: "exp_avg" and "exp_avg_sq" of AdamW, "exp_avg" of Lion,
// "momentum_buffer" of SGD with momentum. AdamW in float32 is make_adamw, which is faster.
#pragma once

#include <memory>

#include "ops/update/update.h"
#include "optim/groups.h"

namespace hawser::optim {

struct ElementwiseSettings {
  ops::UpdateRule rule = ops::UpdateRule::adamw;
  DType state = DType::f32;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;  // AdamW, Lion
  double momentum = 0;                               // SGD
  bool nesterov = false;
  Groups groups = {};
};
std::shared_ptr<const Optimizer> make_elementwise(const ElementwiseSettings& settings);

}  // namespace hawser::optim
