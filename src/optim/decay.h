// `update_runs`: the weight decay of each element of a flat buffer: that of matrices, not of norms and biases
// (nn::Param::decay).
#pragma once

#include <cstdint>
#include <vector>

#include "nn/flat.h"

namespace hawser::optim {

// A range of a shard of a flat buffer that one call of an op updates.
struct UpdateRun {
  std::int64_t begin = 0, count = 0;  // in elements of the shard
  double weight_decay = 0;
};

// Covers [0, count) of the shard [begin, begin + count) of the buffer, in order, with as few runs as possible. A gap
// joins the run before it: its gradient is zero, so it stays zero.
std::vector<UpdateRun> update_runs(const nn::Flat& flat, std::int64_t begin, std::int64_t count, double weight_decay);

}  // namespace hawser::optim
