// Which elements of a flat buffer get weight decay: matrices do, norms and biases do not (nn::Param::decay).
#pragma once

#include <cstdint>
#include <vector>

#include "nn/param.h"

namespace hawser::optim {

// A run of a piece of a unit's flat buffer that one AdamW call updates.
struct UpdateRun {
  std::int64_t begin = 0, count = 0;  // elements of the piece
  bool decay = false;
};

// Covers [0, count) of the piece [begin, begin + count) of the buffer, in order, in as few runs as can be. A gap joins
// the run before it: its gradient is zero and so it stays zero.
std::vector<UpdateRun> update_runs(const nn::Unit& unit, std::int64_t begin, std::int64_t count);

}  // namespace hawser::optim
