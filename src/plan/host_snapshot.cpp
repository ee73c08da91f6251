#include "plan/host_snapshot.h"

#include <algorithm>

#include "plan/target.h"

namespace hawser::plan {

bool saves_asynchronously(const Recipe& recipe) {
  const CheckpointRecipe& c = recipe.checkpoint;
  const TrainRecipe& train = recipe.train;
  const auto midway = [&](std::int64_t every) { return every > 0 && (train.epochs > 0 || every < train.steps); };
  // Evaluations can save at any time: one that is better than all before is saved (OUTPUT/best).
  return c.asynchronous && (midway(c.every_steps) || c.minutes_between() > 0 || midway(recipe.train.evaluate_every));
}

std::int64_t snapshot_memory_cpu(std::int64_t capacity, std::int64_t needed) {
  return std::max<std::int64_t>(0, capacity - needed);
}

std::int64_t snapshot_memory_host(int ranks_here) {
  return free_host_memory() / 10 * 9 / std::max(1, ranks_here);
}

}  // namespace hawser::plan
