// The learning rate of each step, and what the AdamW op needs to know of a step.
//
// Steps count from 1 to TrainRecipe::steps. With s = step - 1, w = warmup_steps, n = steps, peak = learning_rate, and
// low = minimum_learning_rate:
//
//   s < w:  peak * s / w                                    (the first step of a warm-up moves no weight)
//   else, with p = min(1, (s - w) / max(1, n - w)):
//     constant  peak
//     linear    low + (peak - low) * (1 - p)
//     cosine    low + (peak - low) * (1 + cos(pi * p)) / 2
//
// With low = 0 these are, number for number, the learning rates that a transformers Trainer applies at each update with
// get_constant_schedule_with_warmup, get_linear_schedule_with_warmup and get_cosine_schedule_with_warmup; with low > 0
// the cosine is get_cosine_with_min_lr_schedule_with_warmup. (The Trainer logs, beside step k, the rate of step k + 1.)
// low itself is where step n + 1 would be.
#pragma once

#include <cstdint>

#include "base/recipe.h"
#include "ops/adamw/adamw.h"

namespace hawser::optim {

double learning_rate(const OptimizerRecipe& optimizer, const TrainRecipe& train, std::int64_t step);

// The step's learning rate and bias corrections, as the AdamW op reads them from the device.
ops::AdamHyper adam_hyper(const OptimizerRecipe& optimizer, const TrainRecipe& train, std::int64_t step);

}  // namespace hawser::optim
