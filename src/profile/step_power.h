// What the GPUs of all ranks used during timed steps, and the counters of power and clock in a trace.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/world.h"
#include "device/power_meter.h"
#include "profile/timeline.h"

namespace hawser::profile {

struct StepPower {
  PowerUse use;  // of all ranks, during all steps
  double steps = 0, tokens_per_step = 0;

  std::optional<double> joules_per_step() const;
  std::optional<double> joules_per_token() const;
};

// This rank's use, combined with those of all others: the same on every rank. Every rank calls it; `world` null: single
// process.
PowerUse over_ranks(const PowerUse& mine, comm::World* world);

// One JSON object; figures that are absent are left out. from_json: InternalError if to_json did not write it.
std::string to_json(const PowerUse& use);
PowerUse power_use_from_json(const std::string& text);

// Counters "power" in W and "SM clock" in MHz, of samples in the order of time. A sample before `begin_ns` counts from
// there. A counter without a value in any sample is left out.
std::vector<TimelineCounter> counters_of(const std::vector<PowerSample>& samples, std::int64_t begin_ns);

}  // namespace hawser::profile
