// `RunHistory`: curves, totals and findings of a run, in memory that does not grow with the number of steps.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "report/html_chart.h"
#include "report/metrics.h"

namespace hawser::report {

struct RunHistory {
  void add(const StepMetrics& metrics);  // steps increase
  void add(const Finding& finding);

  Curve loss{"training", "nats"}, validation{"validation", "nats"}, norm{"gradient norm"}, rate{"learning rate"};
  std::map<std::string, Curve> validation_sets;  // by name
  Curve tokens{"tokens per second"}, use{"utilization"}, experts{"maximum over mean"};
  Curve watts{"mean of a GPU", "W"}, clock{"mean of a GPU", "MHz"};
  Curve gradient_error{"all gradients"}, worst_error{"worst parameter"}, loss_error{"loss"};  // of FP8, percent
  std::vector<std::int64_t> resumes;  // the last step before each
  std::vector<Finding> findings;      // the first 200
  std::int64_t more_findings = 0;
  std::vector<std::string> fp8_fallbacks;  // modules of Linears that left FP8, each with the step
  std::optional<StepMetrics> last;
  std::optional<double> initial_validation, last_validation, lowest_validation;
  std::int64_t lowest_step = 0;  // of lowest_validation
  double seconds = 0, all_tokens = 0;
  double joules = 0, joules_tokens = 0;  // of the steps whose joules are known
  std::int64_t targets = 0, skipped = 0, replays = 0;
  std::int64_t evaluations = 0;  // after steps
};

}  // namespace hawser::report
