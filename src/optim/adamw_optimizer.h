// `make_adamw`: AdamW with decoupled weight decay; formulas in ops/adamw/adamw.h. Weight decay applies to parameters
// with nn::Param::decay. Slots "exp_avg" and "exp_avg_sq".
#pragma once

#include <memory>

#include "optim/optimizer.h"

namespace hawser::optim {

struct AdamWSettings {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0;
  int groups = 1;  // flats of a FlatSpec::group below it have the learning rate of their group, others that of group 0
  std::vector<double> group_decays = {};  // by FlatSpec::group, in place of weight_decay; of the others, weight_decay
};
std::shared_ptr<const Optimizer> make_adamw(const AdamWSettings& settings = {});

}  // namespace hawser::optim
