// Power and clock of a benchmark's steps, as JSON and as rows of a table. Internal to cli/.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "profile/step_power.h"

namespace hawser::cli {

// {"gpus":2,"joules_per_step":2240.0,...}; null if no GPU was measured.
nlohmann::ordered_json power_json(const profile::StepPower& power);

// Name and value. Only rows that have a figure.
std::vector<std::pair<const char*, std::string>> power_rows(const profile::StepPower& power);

}  // namespace hawser::cli
