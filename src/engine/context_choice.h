// parallel.context_comm: auto at run time, where all ranks agree on one form of context parallelism.
#pragma once

#include <string>

#include "comm/mpi/world.h"
#include "models/model.h"
#include "plan/run_plan.h"

namespace hawser::engine {

// If the recipe sets auto and has context ranks, writes the chosen form into plan.recipe, before plan::lay_out, and
// returns a log line about it; otherwise returns "". Rank 0 chooses by the target's predictions
// (plan::Forecaster::forecast). Every rank calls it; `world` is null with one process. ranks_here: ranks on this
// machine; threads: of a rank, on the CPU.
std::string choose_context_form(plan::RunPlan& plan, const models::Model& model, DeviceKind device, comm::World* world,
                                int ranks_here, int threads);

}  // namespace hawser::engine
