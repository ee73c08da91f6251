// memory.activation_checkpointing: auto at run time: all ranks agree on one choice for the memory that is available.
#pragma once

#include <string>

#include "comm/mpi/world.h"
#include "device/device.h"
#include "models/model.h"
#include "plan/run_plan.h"

namespace hawser::engine {

// If the recipe sets auto, writes the chosen list into plan.recipe and its policies into plan.layout, and returns a
// log line about it; otherwise returns "". Rank 0 chooses, for the minimum of what each rank may use: memory.capacity,
// or else the target's capacity and the free memory that the device's driver reports. Call it after all memory outside
// the plan has been allocated. Equal recipes, ranks and devices give equal choices; results are bitwise independent of
// the choice. Every rank calls it; `world` null: single process. ranks_here: ranks on this machine. DoesNotFit with
// suggestions, on every rank, if nothing fits.
std::string choose_checkpointing(plan::RunPlan& plan, const models::Model& model, const Device& device,
                                 comm::World* world, int ranks_here);

}  // namespace hawser::engine
