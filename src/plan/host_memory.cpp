#include "plan/host_memory.h"

#include <algorithm>

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

HostMemory host_memory_of(const Target& target, const Machine& machine, int world) {
  if (!target.cuda) return {.ranks = world};
  const bool here = machine.ranks > 0;
  return {.capacity = here ? machine.memory : target.host.memory,
          .ranks = here ? machine.ranks : target.ranks_per_machine(world),
          .process = target.host.process};
}

}  // namespace hawser::plan
