// `changes_of`: what a recipe makes of the model that it names.
#pragma once

#include "config/recipe.h"
#include "engine/open_model.h"

namespace hawser::engine {

// The keys `moe`: coefficients of the losses that routers add. Adds a problem if one is set for a model without experts.
ModelChanges changes_of(const Recipe& recipe);

// A model as `eval` computes it: the load-balancing loss counts if the model's own loss includes it
// (nn::MoeConfig::reported), with the coefficient of its config, and no other loss of routers does.
ModelChanges changes_for_evaluation();

}  // namespace hawser::engine
