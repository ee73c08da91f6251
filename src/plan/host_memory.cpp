#include "plan/host_memory.h"

#include <algorithm>

#include "device/device.h"

namespace hawser::plan {

std::int64_t HostMemory::needed(const comm::MeshSizes& mesh, const std::vector<std::int64_t>& pinned) const {
  const int world = mesh.world(), of_stage = world / mesh.pipeline;
  std::int64_t most = 0;
  for (int first = 0; first < world; first += ranks) {
    const int end = std::min(first + ranks, world);
    std::int64_t bytes = 0;
    for (int stage = first / of_stage; stage * of_stage < end; ++stage) {
      const int here = std::min(end, (stage + 1) * of_stage) - std::max(first, stage * of_stage);
      bytes += here * (pinned[static_cast<std::size_t>(stage)] + process);
    }
    most = std::max(most, bytes);
  }
  return most;
}

HostMemory host_memory_of(const MemoryRecipe& recipe, const Target& target, const Machine& machine, int world) {
  const std::int64_t given = recipe.host_capacity ? recipe.host_capacity->value() : 0;
  if (!target.cuda) return {.capacity = given, .ranks = world};
  const bool here = machine.ranks > 0;
  const std::int64_t detected = here ? machine.memory : target.host.memory;
  return {.capacity = given > 0 ? given : detected,
          .ranks = here ? machine.ranks : target.ranks_per_machine(world),
          .process = target.host.process};
}

Machine planning_machine(const Target& target, int world, const std::string& own, int gpus) {
  Machine machine = this_machine();
  if (target.cuda && target.name == own && world <= gpus) machine.ranks = world;
  return machine;
}

Machine planning_machine(const Target& target, int world) {
  return planning_machine(target, world, target_of(DeviceKind::cuda), cuda_info().devices);
}

Machine machine_of_run(Machine machine, const Target& target, int of, int world) {
  const bool all = machine.ranks >= of;
  if (machine.ranks == 0 || !target.cuda) return machine;
  if (all) machine.ranks = std::max(machine.ranks, target.ranks_per_machine(world));
  machine.ranks = std::min(machine.ranks, world);
  return machine;
}

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
