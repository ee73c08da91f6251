#include "cli/power_json.h"

#include <fmt/format.h>

namespace hawser::cli {

nlohmann::ordered_json power_json(const profile::StepPower& power) {
  if (power.use.gpus == 0) return nullptr;
  nlohmann::ordered_json json{{"gpus", power.use.gpus}};
  const auto add = [&](const char* key, const std::optional<double>& value) {
    if (value) json[key] = *value;
  };
  add("joules_per_step", power.joules_per_step());
  add("joules_per_token", power.joules_per_token());
  add("watts_per_gpu", power.use.watts);
  add("sm_clock_mhz", power.use.sm_clock_mhz);
  add("min_sm_clock_mhz", power.use.min_sm_clock_mhz);
  if (power.use.clock_reasons) {
    json["clock_reasons"] = nlohmann::ordered_json::object();
    for (const auto& [name, share] : *power.use.clock_reasons) json["clock_reasons"][name] = share;
  }
  return json;
}

std::vector<std::pair<const char*, std::string>> power_rows(const profile::StepPower& power) {
  std::vector<std::pair<const char*, std::string>> rows;
  const PowerUse& use = power.use;
  const char* const each = use.gpus > 1 ? " per GPU" : "";
  if (const auto joules = power.joules_per_step(); joules && power.joules_per_token()) {
    rows.emplace_back("energy", fmt::format("{:.1f} J per step, {:.4g} J per token{}", *joules,
                                            *power.joules_per_token(), use.gpus > 1 ? ", of all GPUs" : ""));
  }
  if (use.watts) rows.emplace_back("power", fmt::format("{:.0f} W{}, mean", *use.watts, each));
  if (use.sm_clock_mhz && use.min_sm_clock_mhz) {
    rows.emplace_back("SM clock",
                      fmt::format("{:.0f} MHz, mean; minimum {:.0f}", *use.sm_clock_mhz, *use.min_sm_clock_mhz));
  }
  if (!use.clock_reasons) return rows;
  std::string reasons;
  for (const auto& [name, share] : *use.clock_reasons) {
    reasons += fmt::format("{}{} {:.0f} %", reasons.empty() ? "" : ", ", name, 100 * share);
  }
  rows.emplace_back("clock limited by", reasons.empty() ? "nothing" : reasons + " of the time");
  return rows;
}

}  // namespace hawser::cli
