// `scale_loss`, `refuse_step`, `count_step`: the loss scale and the number of steps taken, kept on the device, so that
// the host need not know whether an earlier step was skipped.
//
// scale_loss: the factor of the loss before backward,
//   out[0] = factor[0] * loss_scale[0]
//
// count_step, after it is known whether the step counts:
//   skip == 0:         step += 1, good_steps += 1; if growth_interval > 0 and good_steps >= growth_interval:
//                      loss_scale *= growth_factor, good_steps = 0
//   skip == overflow:  growth_interval > 0: loss_scale = max(loss_scale * backoff_factor, min(loss_scale, minimum));
//                      good_steps = 0
//   otherwise:         nothing: the step had no target, or runs again and is counted then
//
// refuse_step: skips a step that a layer refuses (nn::Refusal),
//   skip = value if refusal > 0
// If it is to run again (`replay_step` is given), so are the steps that the host has enqueued after it meanwhile:
//   replay_step >= 0, replay_step != step:   skip = waits
//   otherwise, refusal > 0:                  skip = value, replay_step = step
//
// With growth_interval 0 the scale is static. loss_scale, factor, out float32 [1]; step, good_steps, skip,
// replay_step int32 [1]. Source: torch.amp.GradScaler; Micikevicius et al., "Mixed Precision Training" (arXiv
// 1710.03740), section 3.2.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

struct ScaleLoss {
  TensorView factor, loss_scale, out;
};
void scale_loss(Stream& stream, const ScaleLoss& args);

struct RefuseStep {
  TensorView refusal;  // float32 [1]
  TensorView skip;     // int32 [1], read and written
  std::int32_t value = 1;
  // int32 [1]; replay_step is read and written. Empty: the step does not run again.
  TensorView step = {}, replay_step = {};
  std::int32_t waits = 1;
};
void refuse_step(Stream& stream, const RefuseStep& args);

struct LossScaling {
  double growth_factor = 2, backoff_factor = 0.5;  // powers of two keep the scaled gradients exact
  std::int64_t growth_interval = 0;                // steps without overflow until the scale grows; 0: static
  double initial = 1;                              // of a new run
  double minimum = 1;                              // backing off goes no lower

  bool dynamic() const { return growth_interval > 0; }
};

struct CountStep {
  TensorView step, good_steps, loss_scale;
  TensorView skip;
  std::int32_t overflow = 1;  // value of `skip` of a step whose gradient's norm is not finite (ops::clip_coefficient)
  LossScaling scaling;
};
void count_step(Stream& stream, const CountStep& args);

HAWSER_BACKENDS_OF(scale_loss, ScaleLoss);
HAWSER_BACKENDS_OF(count_step, CountStep);
HAWSER_BACKENDS_OF(refuse_step, RefuseStep);

}  // namespace hawser::ops
