#include "profile/step_power.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace hawser::profile {

namespace {

constexpr std::pair<const char*, std::optional<double> PowerUse::*> kFigures[] = {
    {"joules", &PowerUse::joules},
    {"watts", &PowerUse::watts},
    {"sm_clock_mhz", &PowerUse::sm_clock_mhz},
    {"min_sm_clock_mhz", &PowerUse::min_sm_clock_mhz}};

}  // namespace

std::optional<double> StepPower::joules_per_step() const {
  if (!use.joules || steps <= 0) return std::nullopt;
  return *use.joules / steps;
}

std::optional<double> StepPower::joules_per_token() const {
  const std::optional<double> joules = joules_per_step();
  if (!joules || tokens_per_step <= 0) return std::nullopt;
  return *joules / tokens_per_step;
}

std::string to_json(const PowerUse& use) {
  nlohmann::ordered_json json{{"gpus", use.gpus}, {"seconds", use.seconds}};
  for (const auto& [name, figure] : kFigures) {
    if (use.*figure) json[name] = *(use.*figure);
  }
  if (use.clock_reasons) {
    json["clock_reasons"] = nlohmann::ordered_json::object();
    for (const auto& [name, share] : *use.clock_reasons) json["clock_reasons"][name] = share;
  }
  return json.dump();
}

PowerUse power_use_from_json(const std::string& text) {
  try {
    const auto json = nlohmann::ordered_json::parse(text);
    PowerUse use{.seconds = json.at("seconds").get<double>(), .gpus = json.at("gpus").get<int>()};
    for (const auto& [name, figure] : kFigures) {
      if (json.contains(name)) use.*figure = json.at(name).get<double>();
    }
    if (json.contains("clock_reasons"))
      use.clock_reasons = json.at("clock_reasons").get<std::map<std::string, double>>();
    return use;
  } catch (const nlohmann::json::exception& error) {
    HAWSER_CHECK(false, "the power of a rank: ", error.what());
  }
}

PowerUse over_ranks(const PowerUse& mine, comm::World* world) {
  if (world == nullptr) return combined({mine});
  std::vector<PowerUse> all;
  for (const std::string& text : world->all_gather_strings(to_json(mine))) all.push_back(power_use_from_json(text));
  return combined(all);
}

std::vector<TimelineCounter> counters_of(const std::vector<PowerSample>& samples, std::int64_t begin_ns) {
  std::vector<TimelineCounter> counters{{.name = "power", .unit = "W"}, {.name = "SM clock", .unit = "MHz"}};
  for (const PowerSample& sample : samples) {
    const std::int64_t at = std::max(sample.real_ns, begin_ns);
    if (sample.watts) counters[0].points.push_back({.at = at, .value = *sample.watts});
    if (sample.sm_clock_mhz) counters[1].points.push_back({.at = at, .value = *sample.sm_clock_mhz});
  }
  std::erase_if(counters, [](const TimelineCounter& counter) { return counter.points.empty(); });
  return counters;
}

}  // namespace hawser::profile
