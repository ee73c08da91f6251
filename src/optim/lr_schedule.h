// The learning-rate schedule.
//
// Steps count from 1 to `steps`. With s = step - 1, w = warmup_steps, n = steps, peak = learning_rate, and
// low = minimum_learning_rate:
//
//   s < w:  peak * s / w                                    (the first step with warm-up changes no weight)
//   else, with p = min(1, (s - w) / max(1, n - w)):
//     constant  peak
//     linear    low + (peak - low) * (1 - p)
//     cosine    low + (peak - low) * (1 + cos(pi * p)) / 2
//
// With low = 0 these equal exactly the learning rates that a transformers Trainer applies at each update with
// get_constant_schedule_with_warmup, get_linear_schedule_with_warmup and get_cosine_schedule_with_warmup; with low > 0
// the cosine is get_cosine_with_min_lr_schedule_with_warmup. (The Trainer logs the rate of step k + 1 at step k.)
// The schedule reaches low at step n + 1.
#pragma once

#include <cstdint>

#include "base/training_options.h"

namespace hawser::optim {

struct LearningRatePlan {
  double learning_rate = 0;
  LearningRateSchedule schedule = LearningRateSchedule::constant;
  std::int64_t warmup_steps = 0;
  double minimum_learning_rate = 0;
  std::int64_t steps = 0;
};

double learning_rate(const LearningRatePlan& plan, std::int64_t step);

}  // namespace hawser::optim
