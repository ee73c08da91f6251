#include "train/step_outcome.h"

#include <fmt/format.h>

#include <cmath>

namespace hawser::train {

Outcome outcome_of(double loss, double grad_norm, double scale, const ops::LossScaling& scaling) {
  if (std::isfinite(loss) && std::isfinite(grad_norm)) return Outcome::trained;
  return scaling.dynamic() && std::isfinite(loss) && scale > scaling.minimum ? Outcome::overflow : Outcome::diverged;
}

std::string remedy_of(double loss, double scale, const ops::LossScaling& scaling) {
  std::string remedy = "; try a lower optimizer.learning_rate or a longer optimizer.warmup_steps";
  if (scaling.dynamic() && std::isfinite(loss)) {
    remedy = fmt::format("; the gradient overflows at the minimum loss scale {:g}", scale) + remedy;
  }
  return remedy;
}

}  // namespace hawser::train
