// What a session needs, forecast before it is made: memory.activation_checkpointing: auto and
// memory.optimizer_offload: auto at run time, where all ranks agree on one choice for the memory that is available, and
// the check of what the recipe sets.
#pragma once

#include <string>

#include "comm/mpi/world.h"
#include "device/device.h"
#include "models/model.h"
#include "plan/run_plan.h"

namespace hawser::engine {

// If the recipe sets auto, writes the choice into plan.recipe, makes plan.layout again, and returns a log line about
// it; otherwise returns "". Rank 0 chooses, for the minimum of what each rank may use: memory.capacity, or else the
// target's capacity and the free memory that the device's driver reports. Call it after all memory outside the plan has
// been allocated. Equal recipes, ranks and devices give equal choices; results are bitwise independent of the choice.
// Every rank calls it; `world` is null with one process. ranks_here: ranks on this machine. DoesNotFit with
// suggestions, on every rank, if nothing fits.
std::string choose_memory(plan::RunPlan& plan, const models::Model& model, const Device& device, comm::World* world,
                          int ranks_here);

// The check of a start (plan::check_capacity) for another session of the run with the policies of plan.recipe: a
// session itself does not count what the process needs besides it (plan::overhead_of). Rank 0 forecasts; DoesNotFit on
// every rank. With auto it does nothing: choose_memory() checks.
void expect_forecast_fits(const plan::RunPlan& plan, const models::Model& model, DeviceKind device, comm::World* world,
                          int ranks_here);

}  // namespace hawser::engine
