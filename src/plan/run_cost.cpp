#include "plan/run_cost.h"

#include <array>
#include <cmath>
#include <cstdio>

#include "base/cat.h"
#include "base/units.h"

namespace hawser::plan {

RunCost cost_of_run(const Forecast& forecast, const Target& target, std::int64_t tokens_per_step,
                    std::optional<std::int64_t> steps, std::optional<double> price) {
  constexpr double kHour = 3600, kBillion = 1e9;
  const double ranks = forecast.layout.mesh.world();
  RunCost out{.tokens_per_step = tokens_per_step};
  if (target.peak > 0) {
    double flops = 0;  // of a rank, the mean of all stages
    for (const StageForecast& stage : forecast.stages) flops += stage.costs.model_flops;
    flops /= static_cast<double>(forecast.stages.size());
    out.utilization = flops / (forecast.seconds * target.peak);
  }
  out.rank_hours_per_billion = kBillion / forecast.tokens_per_second / kHour * ranks;
  if (steps) {
    out.tokens = *steps * tokens_per_step;
    out.seconds = static_cast<double>(*steps) * forecast.seconds;
    out.rank_hours = *out.seconds / kHour * ranks;
  }
  if (price) out.price = *price * out.rank_hours.value_or(out.rank_hours_per_billion);
  return out;
}

namespace {

std::string formatted(const char* format, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

}  // namespace

std::string utilization_text(const RunCost& cost) {
  return cat(std::lround(100 * cost.utilization.value_or(0)), "%");
}

std::string hours_text(double hours) {
  return hours < 1000 ? formatted("%.3g", hours) : format_count(hours);
}

std::string price_text(double price) {
  return formatted("%.2f", price);
}

nlohmann::ordered_json cost_json(const RunCost& cost) {
  nlohmann::ordered_json out{{"tokens_per_step", cost.tokens_per_step}};
  if (cost.utilization) out["model_flops_utilization"] = *cost.utilization;
  out["rank_hours_per_billion_tokens"] = cost.rank_hours_per_billion;
  if (cost.tokens) out["tokens"] = *cost.tokens;
  if (cost.rank_hours) out["rank_hours"] = *cost.rank_hours;
  if (cost.price) out["price"] = *cost.price;
  return out;
}

}  // namespace hawser::plan
