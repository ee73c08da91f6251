#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace hawser::optim {

double learning_rate(const LearningRatePlan& plan, std::int64_t step) {
  HAWSER_CHECK(step >= 1, "step ", step, "; the first is 1");
  const double s = static_cast<double>(step - 1), warmup = static_cast<double>(plan.warmup_steps);
  const double peak = plan.learning_rate, low = plan.minimum_learning_rate;
  if (s < warmup) return peak * (s / warmup);
  const double after = std::max(1.0, static_cast<double>(plan.steps) - warmup);
  const double progress = std::min(1.0, (s - warmup) / after);
  switch (plan.schedule) {
    case LearningRateSchedule::constant:
      return peak;
    case LearningRateSchedule::linear:
      return low + (peak - low) * (1.0 - progress);
    case LearningRateSchedule::cosine:
      return low + (peak - low) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  }
  return peak;
}

}  // namespace hawser::optim
