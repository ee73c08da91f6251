// `adamw_8bit`: one AdamW update (decoupled weight decay) with moments of 8 bits.
//
// Example: a block of 256 elements has exp_avg codes c and the float32 exp_avg_absmax 0.02. An element with code 255,
// which is 1 in the signed code book, has the moment 0.02; one with code 127 has 0.
//
//   m = signed[exp_avg] * exp_avg_absmax of its block,   v = unsigned[exp_avg_sq] * exp_avg_sq_absmax of its block
//   m, v and weight as ops/adamw/adamw.h has them, with m and v in float32
//   exp_avg_absmax    = max |m| of the block,   exp_avg    = nearest code of m / exp_avg_absmax
//   exp_avg_sq_absmax = max v of the block,     exp_avg_sq = nearest code of v / exp_avg_sq_absmax
//
// Code books: tensor/dynamic_map.h. A block whose maximum is 0 has the codes of 0. weight [n] float32 or bf16,
// rounded as ops/update/rounding.h says; exp_avg, exp_avg_sq [n] uint8; exp_avg_absmax, exp_avg_sq_absmax [ceil(n /
// 256)] float32; all updated in place. The first element begins a block; the last block may be shorter. gradient [n]
// float32, not modified. compute_weight [n] float32 or bf16, optional: the weight as it is stored. coefficient [1]
// float32, optional (default 1). skip [1] int32, optional: if it is not 0, nothing changes. hyper: one AdamHyper
// (ops/adamw/adamw.h). All views are disjoint. Source: Dettmers et al., "8-bit Optimizers via Block-wise Quantization",
// 2022 (arXiv 2110.02861); bitsandbytes 0.50.2, optim.AdamW8bit (backends/triton/kernels_optim.py).
#pragma once

#include "ops/run_op.h"
#include "ops/update/rounding.h"

namespace hawser::ops {

constexpr std::int64_t kStateBlock = 256;  // elements that share a maximum

struct AdamW8bit {
  TensorView weight, gradient;
  TensorView exp_avg, exp_avg_absmax, exp_avg_sq, exp_avg_sq_absmax;
  TensorView compute_weight;
  TensorView hyper;
  TensorView coefficient;
  TensorView skip;
  StochasticRounding rounding = {};
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1.0e-8, weight_decay = 0.0;
};
void adamw_8bit(Stream& stream, const AdamW8bit& args);

HAWSER_BACKENDS_OF(adamw_8bit, AdamW8bit);

}  // namespace hawser::ops
