// The output of `hawser plan`: text (up to 100 columns) and JSON.
#pragma once

#include <optional>
#include <string>

#include "plan/disk.h"
#include "plan/forecast.h"

namespace hawser::plan {

// What a plan prints besides the forecast.
struct RunSteps {
  std::optional<std::int64_t> count;  // none: they depend on data that are not here
  bool estimated = false;             // from a sample of the data
};

struct PlanFacts {
  RunSteps steps;
  DiskUse disk;
  std::optional<double> price = {};       // of a rank for an hour
  std::optional<std::int64_t> free_disk;  // for the output folder; none on another machine than this
  Alternatives alternatives;              // if the recipe does not fit
};

// "fits; 1.6 s a step; 1,000 steps about 26 min", or "does not fit: needs 87.68 GiB per rank, has 60.00 GiB; fits with
// --set parallel.context_parallel_degree=2, or from --ranks 16".
std::string headline(const Forecast& forecast, const PlanFacts& facts);

// "26 of 28 Linears of the blocks in FP8", counted by their names in Hugging Face folders, as precision.fp8.exclude
// has them; experts' each.
std::string fp8_text(const Layout& layout, const models::Model& model);

// The headline comes first.
std::string plan_text(const Recipe& recipe, const models::Model& model, const Target& target, const Forecast& forecast,
                      const PlanFacts& facts);

// One JSON object in one line. Contains `suggestions` and `fits_from` only if the recipe does not fit.
std::string plan_json(const Recipe& recipe, const models::Model& model, const Target& target, const Forecast& forecast,
                      const PlanFacts& facts);

}  // namespace hawser::plan
