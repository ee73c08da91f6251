// `SlowSteps`: says once that the steps of a run take far longer than its plan predicts, and what was seen beside it.
//
//   SlowSteps slow({.predicted = 1.35, .steps = 1000, .own_threads = 2, .prediction_of = "one core of an AMD EPYC"});
//   const std::optional<std::string> text = slow.step(4.1, circumstances);
//   // "steps take 4.10 s, 3.0 times the predicted 1.35 s: other processes compute here (load 7.8 on 2 cores, ...)"
//
// Looks at steps 3 to 12 since the start: the first two also start up. The steps are slow if their median is more than
// twice the prediction, and the run would take over a minute longer than predicted.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "device/power_meter.h"

namespace hawser::train {

struct SlowStepsOptions {
  double predicted = 0;       // seconds of a step
  double communication = 0;   // the part of it that collectives take
  std::int64_t steps = 0;     // that this process trains
  int own_threads = 1;        // of the run, on this machine
  std::string prediction_of;  // the hardware that the prediction is for
};

// What may slow a step down.
struct Circumstances {
  std::optional<double> load;             // runnable threads of this machine, mean of a minute
  int cores = 1;                          // that this process may use
  PowerUse power;                         // of the GPUs during the last step
  std::vector<std::string> slow_kernels;  // engine::slow_kernels
};
Circumstances circumstances_here(PowerUse power, std::vector<std::string> slow_kernels);

inline constexpr const char* kSlowSteps = "slow steps";  // report::Finding::rule

class SlowSteps {
 public:
  explicit SlowSteps(SlowStepsOptions options) : options_(std::move(options)) {}
  // A step ended that took `seconds`. `look` is called only if steps are slow.
  std::optional<std::string> step(double seconds, const std::function<Circumstances()>& look);

 private:
  SlowStepsOptions options_;
  std::vector<double> seconds_;
};

}  // namespace hawser::train
