// The output of `hawser plan`: text (up to 100 columns) and JSON.
#pragma once

#include <string>

#include "plan/forecast.h"

namespace hawser::plan {

std::string plan_text(const Recipe& recipe, const models::Model& model, const Target& target, const Forecast& forecast);

// One JSON object in one line. Contains `suggestions` only if the recipe does not fit.
std::string plan_json(const Recipe& recipe, const models::Model& model, const Target& target, const Forecast& forecast,
                      const std::vector<Suggestion>& suggestions);

}  // namespace hawser::plan
