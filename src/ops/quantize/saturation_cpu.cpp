#include "ops/quantize/saturation.h"

namespace hawser::ops::cpu {

void judge_saturation(const JudgeSaturation& args) {
  float& worst = *args.worst.data<float>();
  std::int32_t& site = *args.worst_site.data<std::int32_t>();
  worst = 0;
  site = 0;
  for (std::int64_t i = 0; i < args.saturated.elements(); ++i) {
    const float elements = args.elements.data<float>()[i];
    const float share = elements > 0 ? args.saturated.data<float>()[i] / elements : 0;
    if (share <= worst) continue;
    worst = share;
    site = static_cast<std::int32_t>(i);
  }
  std::int32_t &replay_step = *args.replay_step.data<std::int32_t>(), &replays = *args.replays.data<std::int32_t>(),
               &skip = *args.skip.data<std::int32_t>();
  const std::int32_t step = *args.step.data<std::int32_t>();
  if (replay_step >= 0 && replay_step != step) {
    skip = args.waits;
  } else if (skip == args.refused) {
    return;
  } else if (skip == 0 && worst > args.limit && replays < args.max_replays) {
    skip = args.saturates;
    replay_step = step;
    ++replays;
  } else {
    replay_step = -1;
    replays = 0;
  }
}

}  // namespace hawser::ops::cpu
