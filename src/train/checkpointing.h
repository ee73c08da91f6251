// memory.activation_checkpointing: auto where steps are run: the ranks agree on one choice for the room they have.
#pragma once

#include <string>

#include "base/recipe.h"
#include "comm/mpi/world.h"
#include "device/device.h"
#include "models/model.h"
#include "plan/layout.h"

namespace hawser::train {

// Where the recipe says auto, puts the list of what is chosen into `recipe` and its policies into `layout`, and returns
// a line about it for people; "" elsewhere. The choice is rank 0's, for the least that any rank may use:
// memory.capacity, else the target's capacity and what the device's driver says is free, so call it when all that is
// not planned has been taken. Equal recipes, ranks and devices give equal choices; results do not depend on them, bit
// by bit. Every rank calls it; `world` null: this process alone. ranks_here: ranks on this machine. Error(does_not_fit)
// with offers, on every rank, where nothing fits.
std::string choose_checkpointing(Recipe& recipe, plan::Layout& layout, const models::Model& model, const Device& device,
                                 comm::World* world, int ranks_here);

}  // namespace hawser::train
