// `make_adamw`: AdamW with decoupled weight decay; formulas in ops/adamw/adamw.h. Weight decay applies to parameters
// with nn::Param::decay. Slots "exp_avg" and "exp_avg_sq".
#pragma once

#include <memory>

#include "optim/groups.h"

namespace hawser::optim {

struct AdamWSettings {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0;
  int groups = 1;                         // Groups::count
  std::vector<double> group_decays = {};  // Groups::decays
};
std::shared_ptr<const Optimizer> make_adamw(const AdamWSettings& settings = {});

}  // namespace hawser::optim
