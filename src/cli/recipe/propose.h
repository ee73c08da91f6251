// The recipe that `hawser recipe init` proposes for a model, data and a machine, with the reason of each choice.
#pragma once

#include <string>

#include "base/recipe.h"
#include "config/config.h"

namespace hawser::cli {

struct Proposal {
  Recipe recipe;
  RecipeNotes notes;
  std::string summary;  // one line: what a rank needs, how fast it will be
  double passes = 0;    // how often the steps that were chosen read the data; 0: not chosen, or no data are known
};

// `recipe` says model, output and (if any) data.train; what its `places` name was set by the user and stays. `target`:
// a name or file as in plan/target.h; "": this machine's devices. Reads the model's config and the headers of its
// weights, and a sample of the data. Throws UserError with all problems, and Error(does_not_fit) where nothing fits.
Proposal propose(const Recipe& recipe, const std::string& target);

}  // namespace hawser::cli
