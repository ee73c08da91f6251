// `tensor_runs`: the elements of a rank's shard, tensor by tensor, for ops that need to know which they are.
#pragma once

#include <vector>

#include "ops/update/rounding.h"
#include "optim/optimizer.h"

namespace hawser::optim {

// Elements [begin, begin + count) of a shard, which are of one tensor. Gaps are in none.
struct TensorRun {
  std::int64_t begin = 0, count = 0;
  double weight_decay = 0;
  ops::StochasticRounding rounding;  // of these elements, in this step
};
// `weight_decay`: of parameters with nn::Param::decay; the others have none.
std::vector<TensorRun> tensor_runs(const FlatUpdate& update, double weight_decay);

}  // namespace hawser::optim
