// `PowerWatch`: power and clock of the GPUs of rank 0's machine while a run trains. Costs steps nothing: threads of
// rank 0 sample, and no rank sends anything.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "comm/mpi/world.h"
#include "device/device.h"
#include "device/power_meter.h"
#include "report/metrics.h"

namespace hawser::train {

class PowerWatch {
 public:
  // Every rank calls it; `world` null: single process. Rank 0 measures the GPUs that ranks of its machine use, the
  // others none. Without NVML (`library`) it measures nothing.
  PowerWatch(const Device& device, comm::World* world, const std::string& library = kNvmlLibrary);

  // Of all GPUs measured, from `begin` to `end`.
  PowerUse between(std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end) const;

 private:
  std::vector<std::unique_ptr<PowerMeter>> meters_;
};

// Fills in the figures of a step from the use during it. `ranks`: of the run, each with a GPU; those of other machines
// count as drawing what the measured ones draw.
void add_power(report::StepMetrics& metrics, const PowerUse& use, int ranks);

}  // namespace hawser::train
