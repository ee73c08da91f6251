// `fit_to`: recipe settings that fit a machine, found by planning. For `hawser recipe init`.
#pragma once

#include <cstdint>
#include <string>

#include "config/recipe.h"
#include "models/model.h"
#include "plan/forecast.h"

namespace hawser::autoconfig {

// The machine on which the recipe will run.
struct Place {
  plan::Target target;
  plan::Machine machine;
  int world = 1;
  int threads = 1;  // per rank, on the CPU
};

struct Fitted {
  Recipe recipe;  // with the chosen settings
  plan::Forecast forecast;
  std::int64_t wanted_length = 0;  // requested sequence length; longer than the recipe's if it was reduced
};

// Keeps keys that the user has set (Recipe::places). If the recipe fits, changes nothing else, except to layouts that
// are predicted to be clearly faster on a GPU target. If not, takes the fastest suggestion of the plan that fits at the
// longest sequence length, which is halved down to `min_length` until there is one. Throws Error(does_not_fit) if there
// is none, with the minimum needed and with settings that would fit.
Fitted fit_to(const Recipe& recipe, const models::Model& model, const Place& place, std::int64_t min_length);

}  // namespace hawser::autoconfig
