#include "train/power_watch.h"

#include "base/host_name.h"

namespace hawser::train {

namespace {

constexpr std::chrono::milliseconds kPeriod{200};  // the energy counter moves every 100 ms

}  // namespace

PowerWatch::PowerWatch(const Device& device, comm::World* world, const std::string& library) {
  const std::string host = host_name() + " ", mine = host + device.bus_id();
  const std::vector<std::string> all = world != nullptr ? world->all_gather_strings(mine) : std::vector{mine};
  if (world != nullptr && world->rank().value() > 0) return;
  for (const std::string& gpu : all) {
    if (!gpu.starts_with(host)) continue;
    auto opened = NvmlGpu::open(gpu.substr(host.size()), library);
    if (opened != nullptr) meters_.push_back(std::make_unique<PowerMeter>(std::move(opened), kPeriod));
  }
}

PowerUse PowerWatch::between(std::chrono::steady_clock::time_point begin,
                             std::chrono::steady_clock::time_point end) const {
  std::vector<PowerUse> uses;
  uses.reserve(meters_.size());
  for (const auto& meter : meters_) uses.push_back(meter->between(begin, end));
  return combined(uses);
}

void add_power(report::StepMetrics& metrics, const PowerUse& use, int ranks) {
  metrics.gpu_watts = use.watts;
  metrics.sm_clock_mhz = use.sm_clock_mhz;
  if (use.watts && metrics.tokens_per_second > 0)
    metrics.joules_per_token = *use.watts * ranks / metrics.tokens_per_second;
}

}  // namespace hawser::train
