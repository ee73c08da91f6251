// Host memory of a checkpoint's snapshot (train/snapshot.h): a second copy of a rank's share of parameters and moments.
#pragma once

#include <cstdint>

#include "config/recipe.h"

namespace hawser::plan {

// Whether a run of the recipe saves while steps continue, and so needs a snapshot.
bool saves_asynchronously(const Recipe& recipe);

// Snapshot bytes of a rank, given its optimizer state (two moments): plus float32 master weights, as large as one
// moment.
constexpr std::int64_t snapshot_bytes(std::int64_t optimizer_bytes) {
  return optimizer_bytes / 2 * 3;
}

// Memory available to a rank's snapshot: on the CPU, capacity minus the plan's needs; with a GPU, the rank's share of
// 90% of the host memory that is free now.
std::int64_t snapshot_memory_cpu(std::int64_t capacity, std::int64_t needed);
std::int64_t snapshot_memory_host(int ranks_here);

}  // namespace hawser::plan
