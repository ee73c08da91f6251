// `learning_rate`: the learning rate of a step.
//
//   learning_rate({.learning_rate = 1e-3, .schedule = LearningRateSchedule::linear, .steps = 10}, 6)  // 5e-4
//
// Steps count from 1 to `steps`. With s = step - 1, w = warmup_steps, n = steps, peak = learning_rate, and
// low = minimum_learning_rate:
//
//   s < w:  peak * s / w                                    (the first step with warm-up changes no weight)
//           low + (peak - low) * s / w                      (wsd)
//   else, with p = min(1, (s - w) / max(1, n - w)):
//     constant      peak
//     linear        low + (peak - low) * (1 - p)
//     cosine        low + (peak - low) * (1 + cos(pi * p)) / 2
//     polynomial    low + (peak - low) * (1 - p)^power
//     inverse_sqrt  peak / sqrt((s - w + t) / t), t = w, or 10000 without warm-up
//     wsd           low + (peak - low) * f(q), with d = decay_steps and q = clamp((s - (n - d)) / d, 0, 1)
//                     linear          f(q) = 1 - q
//                     cosine          f(q) = (1 + cos(pi * q)) / 2
//                     one_minus_sqrt  f(q) = 1 - sqrt(q)
//
// These are the learning rates that a transformers Trainer applies at each update (src/transformers/optimization.py):
//
//   constant      get_constant_schedule_with_warmup
//   linear        get_linear_schedule_with_warmup, with low = 0
//   cosine        get_cosine_schedule_with_warmup; with low > 0 get_cosine_with_min_lr_schedule_with_warmup
//   polynomial    get_polynomial_decay_schedule_with_warmup, lr_end = low
//   inverse_sqrt  get_inverse_sqrt_schedule, without a timescale of its own
//   wsd           get_wsd_schedule, num_decay_steps = d, num_training_steps = n, min_lr_ratio = low / peak
//
// (The Trainer logs the rate of step k + 1 at step k.) All but constant and inverse_sqrt reach low at step n + 1.
#pragma once

#include <cstdint>

#include "base/training_options.h"

namespace hawser::optim {

struct LearningRatePlan {
  double learning_rate = 0;
  LearningRateSchedule schedule = LearningRateSchedule::constant;
  std::int64_t warmup_steps = 0;
  std::int64_t decay_steps = 0;  // wsd; at most steps - warmup_steps
  DecayType decay_type = DecayType::cosine;
  double power = 1;  // polynomial
  double minimum_learning_rate = 0;
  std::int64_t steps = 0;
};

double learning_rate(const LearningRatePlan& plan, std::int64_t step);

}  // namespace hawser::optim
