// Host memory of a checkpoint's snapshot (train/snapshot.h): a rank's share of parameters and moments, once more.
#pragma once

#include <cstdint>

#include "base/recipe.h"

namespace hawser::plan {

// Whether a run of the recipe saves while steps go on, and so needs a snapshot.
bool saves_asynchronously(const Recipe& recipe);

// Of a rank whose optimizer state takes so many bytes: float32 master weights, as large as each of the two moments.
constexpr std::int64_t snapshot_bytes(std::int64_t optimizer_bytes) {
  return optimizer_bytes / 2 * 3;
}

// What a rank has for it. On the CPU that is what its plan leaves of its capacity; beside a GPU its share of the host's
// memory that is free now, less a tenth.
std::int64_t snapshot_memory_cpu(std::int64_t capacity, std::int64_t needed);
std::int64_t snapshot_memory_host(int ranks_here);

}  // namespace hawser::plan
