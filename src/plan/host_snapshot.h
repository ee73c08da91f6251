// Host memory of a checkpoint's snapshot (train/snapshot.h): a second copy of a rank's share of parameters and
// optimizer state, Costs::saved_bytes.
#pragma once

#include <cstdint>

#include "config/recipe.h"

namespace hawser::plan {

// Whether a run of the recipe saves while steps continue, and so needs a snapshot.
bool saves_asynchronously(const Recipe& recipe);

// Memory available to a rank's snapshot: on the CPU, capacity minus the plan's needs; with a GPU, the rank's share of
// 90% of the host memory that is free now.
std::int64_t snapshot_memory_cpu(std::int64_t capacity, std::int64_t needed);
std::int64_t snapshot_memory_host(int ranks_here);

}  // namespace hawser::plan
