// What `propose` takes from a requested recipe before it chooses settings: target, number of ranks, and the model.
#pragma once

#include <cstdint>
#include <string>

#include "config/recipe.h"
#include "engine/open_model.h"
#include "plan/target.h"

namespace hawser::autoconfig {

// The number of this machine's GPUs that the recipe may use.
int usable_gpus(const Recipe& recipe);

// The target that the recipe is planned for. `name`: a name or file as in plan/target.h; "": this machine's devices.
// Throws UserError if there is no such target.
plan::Target choose_target(const Recipe& recipe, const std::string& name, int gpus);

// run.ranks if given; else one rank per GPU, or as many ranks on the CPU as the degrees need.
int choose_ranks(const Recipe& recipe, const plan::Target& target, int gpus);

struct UsualRate {
  double rate = 0;
  std::string why;  // where it comes from, as the recipe's comment says it
};

// The peak learning rate for a model of this size, or for its adapter.
UsualRate usual_learning_rate(const Recipe& recipe, std::int64_t parameters);

// Checks all of a requested recipe that does not depend on what `propose` chooses: its keys, model, target, layout,
// output folders and, if there are problems or `problems` has some, its data (else `propose` reports them).
void check_requested(Recipe recipe, const std::string& target, Problems& problems);

// Whether the batch, set by the user, has fewer sequences than `world` ranks need, and the degrees that let ranks share
// a sequence are left to the proposal.
bool may_share_sequences(const Recipe& recipe, int world);

// Opens the recipe's model with the recipe's changes. If there are problems, of the model or those passed in, adds
// those of the target and the layout, too; the batch counts only if the user set it, because `propose` chooses it.
engine::OpenModel open_requested(const Recipe& recipe, const std::string& target, Problems& problems);

}  // namespace hawser::autoconfig
