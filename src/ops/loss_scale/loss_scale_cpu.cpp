#include <algorithm>

#include "ops/loss_scale/loss_scale.h"

namespace hawser::ops::cpu {

namespace {

float backed_off(float scale, const LossScaling& scaling) {
  const auto minimum = static_cast<float>(scaling.minimum);
  return std::max(static_cast<float>(scale * scaling.backoff_factor), std::min(scale, minimum));
}

}  // namespace

void scale_loss(const ScaleLoss& args) {
  *args.out.data<float>() = *args.factor.data<float>() * *args.loss_scale.data<float>();
}

void refuse_step(const RefuseStep& args) {
  std::int32_t& skip = *args.skip.data<std::int32_t>();
  const bool refused = *args.refusal.data<float>() > 0;
  if (args.replay_step.empty()) {
    if (refused) skip = args.value;
    return;
  }
  const std::int32_t step = *args.step.data<std::int32_t>();
  std::int32_t& replay_step = *args.replay_step.data<std::int32_t>();
  if (replay_step >= 0 && replay_step != step) {
    skip = args.waits;
  } else if (refused) {
    skip = args.value;
    replay_step = step;
  }
}

void count_step(const CountStep& args) {
  const LossScaling& scaling = args.scaling;
  std::int32_t& good = *args.good_steps.data<std::int32_t>();
  float& scale = *args.loss_scale.data<float>();
  const std::int32_t skip = *args.skip.data<std::int32_t>();
  if (skip == 0) {
    ++*args.step.data<std::int32_t>();
    ++good;
    if (scaling.growth_interval == 0 || good < scaling.growth_interval) return;
    scale = static_cast<float>(scale * scaling.growth_factor);
    good = 0;
  } else if (skip == args.overflow) {
    if (scaling.growth_interval > 0) scale = backed_off(scale, scaling);
    good = 0;
  }
}

}  // namespace hawser::ops::cpu
