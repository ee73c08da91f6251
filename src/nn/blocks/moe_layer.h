// `MoeConfig`: experts in place of an MLP (arXiv 2401.04088). Not supported yet.
//
//   p = softmax over experts of router(norm(x))
//   y = residual + sum over the top_k experts e of a token: w[e] * down[e](activation(gate_up[e](norm(x))))
//
// w are the top_k largest p, with normalise_top_k divided by their sum.
#pragma once

#include <string>

#include "nn/blocks/activation.h"
#include "nn/blocks/norm.h"

namespace hawser::nn {

struct MoeConfig {
  std::int64_t width = 0, experts = 0, top_k = 0;  // C, E, K
  std::int64_t inner = 0;                          // F of an expert
  bool normalise_top_k = true;
  Activation activation = Activation::swiglu;
  NormConfig norm_config;
  double initial_std = 0.02, output_std = 0.02;
  // Coefficients of the losses that the router adds, as the model's config has them (router_aux_loss_coef). A recipe may
  // change them. `reported`: the model's own loss includes the load-balancing loss (output_router_logits).
  double auxiliary_loss = 0, router_z_loss = 0;
  bool reported = false;
  // Names without ".weight", as in the Hugging Face folder. Those of experts have "{}" in place of the expert's number:
  // "model.layers.0.block_sparse_moe.experts.{}.w1".
  std::string norm, router, gate, up, down;
};

}  // namespace hawser::nn
