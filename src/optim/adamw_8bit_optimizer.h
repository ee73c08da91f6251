// `make_adamw_8bit`: AdamW with moments of 8 bits, as bitsandbytes has it; formulas in ops/adamw_8bit/adamw_8bit.h.
//
// Blocks of 256 elements of a global tensor share a maximum, so flats need a FlatSpec::grain that is a multiple of 256
// (eight_bit_specs). Flats with FlatSpec::elementwise have AdamW with float32 moments. Weights are in FlatSpec::stored;
// what is stored in bf16 is rounded stochastically. Slots: "exp_avg", "exp_avg_absmax", "exp_avg_sq" and
// "exp_avg_sq_absmax"; of elementwise flats those of AdamW.
#pragma once

#include <memory>

#include "optim/groups.h"

namespace hawser::optim {

struct AdamW8bitSettings {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  Groups groups = {};
};
std::shared_ptr<const Optimizer> make_adamw_8bit(const AdamW8bitSettings& settings = {});

// `spec_of` with FlatSpec::elementwise for embeddings and for the parameters of tensors of fewer than 4096 elements,
// and with a grain of whole blocks for the others. Equal on every mesh.
nn::FlatSpecOf eight_bit_specs(nn::FlatSpecOf spec_of);

}  // namespace hawser::optim
