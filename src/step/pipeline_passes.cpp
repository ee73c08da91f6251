#include "step/pipeline_passes.h"

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace hawser::step {

std::vector<Pass> one_forward_one_backward(int stages, int stage, int micro_batches) {
  std::vector<Pass> passes;
  const int ahead = std::min(stages - stage, micro_batches);
  const auto backward = [&](int mb) {
    passes.push_back({Pass::Kind::backward, mb, stage});
    passes.push_back({Pass::Kind::weight_gradients, mb, stage});
  };
  for (int mb = 0; mb < micro_batches; ++mb) {
    if (mb >= ahead) backward(mb - ahead);
    passes.push_back({Pass::Kind::forward, mb, stage});
  }
  for (int mb = micro_batches - ahead; mb < micro_batches; ++mb) backward(mb);
  return passes;
}

std::vector<Pass> interleaved(int stages, int virtual_stages, int stage, int micro_batches) {
  // The order of whole groups, without the micro-batches that the last group lacks: what is left waits for nothing
  // that is not there.
  const int whole = static_cast<int>(round_up(micro_batches, stages));
  const int group = stages * virtual_stages, passes = whole * virtual_stages;
  const auto pass = [&](Pass::Kind kind, int k) {
    const int turn = k % group / stages, own = kind == Pass::Kind::forward ? turn : virtual_stages - 1 - turn;
    return Pass{kind, k / group * stages + k % stages, own * stages + stage};
  };
  const int ahead =
      whole == stages ? passes : std::min(passes, 2 * (stages - stage - 1) + (virtual_stages - 1) * stages);
  std::vector<Pass> out;
  const auto add = [&](const Pass& next) {
    if (next.micro_batch < micro_batches) out.push_back(next);
  };
  for (int k = 0; k < passes + ahead; ++k) {
    if (k < passes) add(pass(Pass::Kind::forward, k));
    if (k >= ahead) add(pass(Pass::Kind::backward, k - ahead));
  }
  return out;
}

std::vector<std::vector<Pass>> zero_bubble(int stages, int micro_batches) {
  struct Stage {
    int forward = 0, backward = 0, weights = 0;  // passes so far
    std::vector<int> forward_end, backward_end;  // by micro-batch
    std::vector<Pass> passes;
  };
  std::vector<Stage> all(static_cast<std::size_t>(stages));
  const auto done = [&] {
    return std::ranges::all_of(all, [&](const Stage& s) { return s.weights == micro_batches; });
  };
  for (int now = 0; !done(); ++now) {
    for (int s = 0; s < stages; ++s) {
      Stage& stage = all[static_cast<std::size_t>(s)];
      const auto ready = [&](int neighbour, int mb, const std::vector<int> Stage::*ends) {
        const std::vector<int>& of = all[static_cast<std::size_t>(neighbour)].*ends;
        return mb < static_cast<int>(of.size()) && of[static_cast<std::size_t>(mb)] <= now;
      };
      const int b = stage.backward, f = stage.forward;
      const bool last = s + 1 == stages;
      if (f < micro_batches && f - b < stages - s && f - stage.weights < stages &&
          (s == 0 || ready(s - 1, f, &Stage::forward_end))) {
        stage.passes.push_back({Pass::Kind::forward, stage.forward++, s});
        stage.forward_end.push_back(now + 1);
      } else if (b < f && (last || ready(s + 1, b, &Stage::backward_end))) {
        stage.passes.push_back({Pass::Kind::backward, stage.backward++, s});
        stage.backward_end.push_back(now + 1);
      } else if (stage.weights < stage.backward) {
        stage.passes.push_back({Pass::Kind::weight_gradients, stage.weights++, s});
      }
    }
  }
  std::vector<std::vector<Pass>> passes;
  for (Stage& stage : all) passes.push_back(std::move(stage.passes));
  return passes;
}

}  // namespace hawser::step
