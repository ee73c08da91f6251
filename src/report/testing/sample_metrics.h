// Shared helpers of this module's tests.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/testing/temporary_folder.h"
#include "report/metrics.h"

namespace hawser::report {

inline StepMetrics metrics_of(std::int64_t step) {
  return {.step = step,
          .time = 1.75e9 + 0.5 * static_cast<double>(step),
          .loss = 3.5,
          .grad_norm = 1.25,
          .lr = 2e-5,
          .tokens_per_second = 12345,
          .model_flops_per_second = 1e12,
          .step_seconds = 0.5,
          .targets = 4000,
          .peak_arena_bytes = std::int64_t{5} << 28,
          .attention_imbalance = 1.25,
          .data_position = {.sequences = 8 * step, .epoch = 0.5}};
}

}  // namespace hawser::report
