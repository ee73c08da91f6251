// The arithmetic of ops::update for one element, for both backends.
#pragma once

#include "ops/update/update.h"

namespace hawser::ops {

// Constants of one step, computed once in float64.
struct UpdateStep {
  float beta1, one_minus_beta1, beta2, one_minus_beta2, keep, step_size, inverse_root_correction2, epsilon;
  float learning_rate, momentum, weight_decay, coefficient;
};

// The settings that they depend on.
struct UpdateConstants {
  double beta1 = 0, beta2 = 0, epsilon = 0, momentum = 0, weight_decay = 0;
};

inline UpdateConstants constants_of(const Update& args) {
  return {args.beta1, args.beta2, args.epsilon, args.momentum, args.weight_decay};
}

constexpr UpdateStep update_step(const UpdateConstants& args, double learning_rate, double correction1,
                                 double root_correction2, float coefficient) {
  return {.beta1 = static_cast<float>(args.beta1),
          .one_minus_beta1 = static_cast<float>(1.0 - args.beta1),
          .beta2 = static_cast<float>(args.beta2),
          .one_minus_beta2 = static_cast<float>(1.0 - args.beta2),
          .keep = static_cast<float>(1.0 - learning_rate * args.weight_decay),
          .step_size = static_cast<float>(learning_rate / correction1),
          .inverse_root_correction2 = static_cast<float>(1.0 / root_correction2),
          .epsilon = static_cast<float>(args.epsilon),
          .learning_rate = static_cast<float>(learning_rate),
          .momentum = static_cast<float>(args.momentum),
          .weight_decay = static_cast<float>(args.weight_decay),
          .coefficient = coefficient};
}

// `root`: the square root of a float32, which has no constexpr function.
template <UpdateRule rule, bool nesterov, class Root>
constexpr void advance(const UpdateStep& s, float gradient, float& weight, float& first, float& second,
                       const Root& root) {
  float g = gradient * s.coefficient;
  if constexpr (rule == UpdateRule::adamw) {
    first = s.beta1 * first + s.one_minus_beta1 * g;
    second = s.beta2 * second + s.one_minus_beta2 * g * g;
    weight = s.keep * weight - s.step_size * first / (root(second) * s.inverse_root_correction2 + s.epsilon);
  } else if constexpr (rule == UpdateRule::lion) {
    const float direction = s.beta1 * first + s.one_minus_beta1 * g;
    // NaN is no number below or above 0, and stays NaN.
    const float sign = direction > 0 ? 1.0f : direction < 0 ? -1.0f : direction;
    weight = s.keep * weight - s.learning_rate * sign;
    first = s.beta2 * first + s.one_minus_beta2 * g;
  } else {
    g += s.weight_decay * weight;
    first = s.momentum * first + g;
    weight -= s.learning_rate * (nesterov ? g + s.momentum * first : first);
  }
}

}  // namespace hawser::ops
