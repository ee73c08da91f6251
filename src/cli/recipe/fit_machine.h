// Settings of a recipe that fit where it will run, found by planning: `hawser recipe init`.
#pragma once

#include <cstdint>
#include <string>

#include "base/recipe.h"
#include "models/model.h"
#include "plan/forecast.h"

namespace hawser::cli {

// Where the recipe will run.
struct Place {
  plan::Target target;
  plan::Machine machine;
  int world = 1;
  int threads = 1;  // of a rank on the CPU
};

struct Fitted {
  Recipe recipe;  // with what was chosen
  plan::Forecast forecast;
  std::int64_t wanted_length = 0;  // the sequence length that was asked for; longer than the recipe's where it shrank
};

// Keys that the user has set (Recipe::places) stay as they are. Of the others: where the recipe fits as it is, it
// stays, but for layouts that a GPU target is predicted to run clearly faster; where it does not, the fastest of the
// plan's offers that fits with the longest sequence, which is halved until there is one, down to `least_length`. Throws
// Error(does_not_fit) where there is none, with the least that is needed and what would be enough.
Fitted fit_to(const Recipe& recipe, const models::Model& model, const Place& place, std::int64_t min_length);

}  // namespace hawser::cli
