// `ema`: one step of the exponential moving average of weights.
//
// Example: with decay 0.75, weight 2 and average 4 make average 4 + 0.25 * (2 - 4) = 3.5.
//
//   average = updates > 1 ? average + (1 - decay) * (weight - average) : weight
//
// weight [n] float32 or bf16, not modified. average [n] float32, updated in place. updates [1] int32: the updates of the
// weights so far, this one included. skip [1] int32, optional: if it is not 0, nothing changes. decay is in [0, 1). All
// views are disjoint.
// Source: torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(decay), whose first average is the weights.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

struct Ema {
  TensorView weight, average;
  TensorView updates;
  TensorView skip;
  double decay = 0.999;
};
void ema(Stream& stream, const Ema& args);

HAWSER_BACKENDS_OF(ema, Ema);

}  // namespace hawser::ops
