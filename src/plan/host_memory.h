// Memory of a machine that its ranks share, besides that of their GPUs. On a CPU both are one memory, which
// Forecast::needed counts.
//
//   bytes of a machine = sum over its ranks of (pinned bytes + TargetHost::process)
//
// Ranks are on machines in blocks of consecutive ranks. A checkpoint's snapshot (train/snapshot.h), a second copy of a
// rank's share of parameters and optimizer state (Costs::saved_bytes), is not counted: without memory for it, steps
// wait for saves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/mesh_sizes.h"
#include "config/recipe.h"
#include "plan/target.h"

namespace hawser::plan {

struct HostMemory {
  // Bytes of one machine. It is 0, and not checked, if it is not known, or if host and device have one memory and the
  // recipe sets no memory.host_capacity.
  std::int64_t capacity = 0;
  int ranks = 1;             // on one machine; the last one may have fewer
  std::int64_t process = 0;  // bytes of a rank besides what it pins

  // By the ranks of the machine that need the most. `pinned`: bytes of a rank, by pipeline stage; the ranks of a stage
  // are consecutive, and those of the first stage are first.
  std::int64_t needed(const comm::MeshSizes& mesh, const std::vector<std::int64_t>& pinned) const;
};

// Of the machines of `world` ranks: `machine` if Machine::ranks says that they are on it, otherwise those of the
// target.
// With memory.host_capacity of the recipe, that.
HostMemory host_memory_of(const MemoryRecipe& recipe, const Target& target, const Machine& machine, int world);

// This machine, for the plan of `world` ranks that are not started: they are on it if it has that many GPUs of the
// target's kind (Machine::ranks is `world`), otherwise on machines of the target (0). It has `gpus` of target `own`.
Machine planning_machine(const Target& target, int world, const std::string& own, int gpus);
Machine planning_machine(const Target& target, int world);

// `machine`, one of those of a run of `of` ranks, as one of those of a run of `world`. If the run has several machines,
// so does the other, with as many ranks on each. If it has one, that has as many ranks of the other run as a machine of
// the target, and at least those that it had.
Machine machine_of_run(Machine machine, const Target& target, int of, int world);

// Whether a run of the recipe saves while steps continue, and so needs a snapshot.
bool saves_asynchronously(const Recipe& recipe);

// Memory available to a rank's snapshot: on the CPU, capacity minus the plan's needs; with a GPU, the rank's share of
// 90% of the host memory that is free now.
std::int64_t snapshot_memory_cpu(std::int64_t capacity, std::int64_t needed);
std::int64_t snapshot_memory_host(int ranks_here);

}  // namespace hawser::plan
