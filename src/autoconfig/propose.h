// `propose`: the recipe of `hawser recipe init` for a model, data and a machine, with the reason of each choice.
#pragma once

#include <string>

#include "config/config.h"
#include "config/recipe.h"

namespace hawser::autoconfig {

struct Proposal {
  Recipe recipe;
  RecipeNotes notes;
  std::string summary;  // one line: memory of a rank, predicted speed
  std::string few;      // "3 epochs of it are 12 steps", if these are too few to teach much; else ""
};

// `recipe` has model, output and data.train (if any); keys in its `places` were set by the user and stay. `target`: a
// name or file as in plan/target.h; "": this machine's devices. Reads the model's config, the headers of its weights,
// and a sample of the data. Throws UserError with all problems, and Error(does_not_fit) if nothing fits.
Proposal propose(const Recipe& recipe, const std::string& target);

}  // namespace hawser::autoconfig
