// `judge_saturation`: the guard of delayed scales. A step in which too many elements of a matrix were beyond the range
// of its scale is skipped and runs again.
//
//   share[i] = saturated[i] / elements[i], 0 where elements[i] is 0
//   worst[0] = max share[i]      worst_site[0] = the first i that has it
//   if replay_step[0] >= 0 and replay_step[0] != step[0]:
//     skip[0] = waits
//   else if skip[0] == refused:
//     nothing
//   else if skip[0] == 0 and worst[0] > limit and replays[0] < max_replays:
//     skip[0] = saturates, replay_step[0] = step[0], replays[0] += 1
//   else:
//     replay_step[0] = -1, replays[0] = 0
//
// So a step with another number that was enqueued before the host knew changes nothing, and a step that is skipped for
// another reason does not run again. A refused step (ops::refuse_step) has no results to judge, and runs again.
// saturated, elements [N] float32, N >= 1: of a step (ops/quantize/quantize.h); worst [1] float32; worst_site, step,
// replay_step, replays, skip [1] int32. All views are apart. The quotient is rounded to float32. The results have the
// same bits on every device.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

struct JudgeSaturation {
  TensorView saturated, elements, step;                 // read
  TensorView worst, worst_site;                         // written
  TensorView replay_step, replays, skip;                // read and written
  float limit = 1;                                      // 1: no step is skipped
  std::int32_t max_replays = 1;                         // of one step
  std::int32_t saturates = 1, waits = 1, refused = -1;  // values of `skip`, not 0
};
void judge_saturation(Stream& stream, const JudgeSaturation& args);

HAWSER_BACKENDS_OF(judge_saturation, JudgeSaturation);

}  // namespace hawser::ops
