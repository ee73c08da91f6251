#include "plan/snapshot_room.h"

#include <algorithm>

#include "plan/target.h"

namespace hawser::plan {

bool saves_beside_steps(const Recipe& recipe) {
  const CheckpointRecipe& c = recipe.checkpoint;
  const auto midway = [&](std::int64_t every) { return every > 0 && every < recipe.train.steps; };
  // An evaluation that is better than all before is saved (OUTPUT/best).
  return c.asynchronous && (midway(c.every_steps) || c.every_minutes > 0 || midway(recipe.train.evaluate_every));
}

std::int64_t snapshot_room_cpu(std::int64_t capacity, std::int64_t needed) {
  return std::max<std::int64_t>(0, capacity - needed);
}

std::int64_t snapshot_room_host(int ranks_here) {
  return free_host_memory() / 10 * 9 / std::max(1, ranks_here);
}

}  // namespace hawser::plan
