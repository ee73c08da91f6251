#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace hawser::optim {
namespace {

double half_cosine(double progress) {
  return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

// f(q) of the wsd schedule.
double decayed(DecayType type, double progress) {
  switch (type) {
    case DecayType::linear:
      return 1.0 - progress;
    case DecayType::cosine:
      return half_cosine(progress);
    case DecayType::one_minus_sqrt:
      return 1.0 - std::sqrt(progress);
  }
  return 1.0;
}

}  // namespace

double learning_rate(const LearningRatePlan& plan, std::int64_t step) {
  HAWSER_CHECK(step >= 1, "step ", step, "; the first is 1");
  const double s = static_cast<double>(step - 1), warmup = static_cast<double>(plan.warmup_steps);
  const double steps = static_cast<double>(plan.steps);
  const double peak = plan.learning_rate, low = plan.minimum_learning_rate;
  const bool wsd = plan.schedule == LearningRateSchedule::wsd;
  if (s < warmup) return wsd ? low + (peak - low) * (s / warmup) : peak * (s / warmup);
  const double progress = std::min(1.0, (s - warmup) / std::max(1.0, steps - warmup));
  switch (plan.schedule) {
    case LearningRateSchedule::constant:
      return peak;
    case LearningRateSchedule::linear:
      return low + (peak - low) * (1.0 - progress);
    case LearningRateSchedule::cosine:
      return low + (peak - low) * half_cosine(progress);
    case LearningRateSchedule::polynomial:
      return low + (peak - low) * std::pow(1.0 - progress, plan.power);
    case LearningRateSchedule::inverse_sqrt: {
      const double timescale = plan.warmup_steps > 0 ? warmup : 10000.0;
      return peak / std::sqrt((s - warmup + timescale) / timescale);
    }
    case LearningRateSchedule::wsd: {
      const double decay = std::max(1.0, static_cast<double>(plan.decay_steps));
      const double after_start = s - (steps - static_cast<double>(plan.decay_steps));
      return low + (peak - low) * decayed(plan.decay_type, std::clamp(after_start / decay, 0.0, 1.0));
    }
  }
  return peak;
}

}  // namespace hawser::optim
