// `make_muon`: Muon for the matrices of blocks, AdamW for everything else; formulas in ops/muon/muon.h.
//
// A matrix's update is the momentum, orthogonalized. So the ranks gather the momentum of a flat in bf16, each
// orthogonalizes some of its complete matrices, and the results are scattered to the shards: a matrix is computed once,
// by the same operations on every mesh. The update of a matrix [rows, columns] is scaled by 0.2 * sqrt(max(rows,
// columns)), which gives it the root mean square of AdamW's updates, so that both have one learning rate
// (torch.optim.Muon with adjust_lr_fn="match_rms_adamw"; Liu et al., 2025, arXiv 2502.16982).
//
// Weights are in FlatSpec::stored, rounded stochastically in bf16. Weight decay applies to parameters with
// nn::Param::decay. Slots: "momentum_buffer", and of flats with FlatSpec::elementwise (muon_specs) those of AdamW.
#pragma once

#include <memory>

#include "optim/groups.h"

namespace hawser::optim {

struct MuonSettings {
  double momentum = 0.95;
  bool nesterov = true;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;  // AdamW
  Groups groups = {};
};
std::shared_ptr<const Optimizer> make_muon(const MuonSettings& settings = {});

// `spec_of` with FlatSpec::elementwise for embeddings, heads, norms and biases.
nn::FlatSpecOf muon_specs(nn::FlatSpecOf spec_of);

}  // namespace hawser::optim
