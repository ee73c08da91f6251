// A table of plans, one in a line: of several numbers of ranks, or of what a recipe could say instead.
//
//   std::vector<Compared> rows;
//   rows.push_back({.what = "16", .forecast = forecaster.forecast(), .cost = cost_of_run(...)});
//   print(comparison_text("ranks", rows, target));
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/run_cost.h"

namespace hawser::plan {

struct Compared {
  std::string what;                  // "16", or "--set precision.compute=fp8"
  std::optional<Forecast> forecast;  // nullopt: `problem` says why there is none
  RunCost cost;
  std::string problem;
};

// Columns: `what`, memory per rank, seconds of a step, tokens/s of all ranks, utilization if the target has a peak; and
// with known steps time and GPU-hours, with a price the price. A plan that does not fit has its memory only.
std::string comparison_text(const std::string& what, const std::vector<Compared>& rows, const Target& target);

// {"target": "h200", "never_run": false, "plans": [{"ranks": "8", "fits": true, "needed": ..., ...}]}, in one line.
std::string comparison_json(const std::string& what, const std::vector<Compared>& rows, const Target& target);

}  // namespace hawser::plan
