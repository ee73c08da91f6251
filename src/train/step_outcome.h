// `outcome_of`: whether training continues after a step whose loss or gradient may not be finite.
#pragma once

#include <string>

#include "ops/loss_scale/loss_scale.h"
#include "report/metrics.h"

namespace hawser::train {

enum class Outcome {
  trained,   // loss and gradient are finite
  overflow,  // the scaled gradient overflowed under a dynamic loss scale: the device skipped the step and lowered the
             // scale. Training continues
  diverged,  // not finite without a loss scale to lower: it is static or at its minimum, or the loss itself, which is not
             // scaled, is not finite
};

// `scale`: the loss scale that the step had.
Outcome outcome_of(double loss, double grad_norm, double scale, const ops::LossScaling& scaling);

// For the message about a step that diverged: "; try ...".
std::string remedy_of(double loss, double scale, const ops::LossScaling& scaling);

}  // namespace hawser::train
