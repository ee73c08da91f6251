// `RunCost`: what a run takes besides memory, and how well its steps use the devices.
//
//   const RunCost cost = cost_of_run(forecast, target, tokens_per_step, steps, 2.50);
//   cost.utilization      0.43: the model FLOPs of a step over what the devices could compute in its time
//   *cost.rank_hours      GPU-hours of the run, on a GPU target
//
// The utilization is the MFU of PaLM (Chowdhery et al., 2022, appendix B): model FLOPs without recompute, over seconds
// times the peak FLOP/s of dense GEMMs in bf16, also for steps in FP8.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "plan/forecast.h"

namespace hawser::plan {

struct RunCost {
  std::int64_t tokens_per_step = 0;
  std::optional<double> utilization;   // nullopt: the target has no peak
  double rank_hours_per_billion = 0;   // of 10^9 tokens
  std::optional<std::int64_t> tokens;  // of the run; this and the next two: nullopt if its steps are not known
  std::optional<double> seconds;
  std::optional<double> rank_hours;
  std::optional<double> price;  // of the run, or of 10^9 tokens if its steps are not known; nullopt: no price is given
};

// `price`: of one rank for an hour, in any currency.
RunCost cost_of_run(const Forecast& forecast, const Target& target, std::int64_t tokens_per_step,
                    std::optional<std::int64_t> steps, std::optional<double> price);

// As plans print them: "43%"; "0.125", "3.02K" without a unit; "12.50".
std::string utilization_text(const RunCost& cost);
std::string hours_text(double hours);
std::string price_text(double price);
// {"tokens_per_step": ..., "rank_hours_per_billion_tokens": ...}, and what is known of the others by its name.
nlohmann::ordered_json cost_json(const RunCost& cost);

}  // namespace hawser::plan
