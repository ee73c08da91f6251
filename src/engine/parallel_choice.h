// parallel.context_comm: auto and parallel.pipeline_partition: auto at run time, where all ranks agree on one form of
// context parallelism and on the cuts between pipeline stages.
#pragma once

#include <string>
#include <vector>

#include "comm/mpi/world.h"
#include "models/model.h"
#include "plan/run_plan.h"

namespace hawser::engine {

// Writes what the recipe leaves open into plan.recipe, before plan::lay_out, and returns a log line about each choice.
// Rank 0 chooses by the target's predictions (plan::Forecaster::forecast). Every rank calls it; `world` is null with
// one process. ranks_here: ranks on this machine; threads: of a rank, on the CPU.
std::vector<std::string> choose_parallelism(plan::RunPlan& plan, const models::Model& model, DeviceKind device,
                                            comm::World* world, int ranks_here, int threads);

}  // namespace hawser::engine
