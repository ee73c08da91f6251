// Schedules of pipeline stages, for tests.
#pragma once

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

#include "step/pass.h"

namespace hawser::testing {

using step::Pass;

// 1F1B (arXiv 2104.04473): stage s has at most stages - s micro-batches between forward and backward. Weight gradients
// follow their backward pass.
inline std::vector<Pass> one_forward_one_backward(int stages, int stage, int micro_batches) {
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

// ZB-H1 (arXiv 2401.10241) for passes of equal duration: a backward pass goes first, then a forward pass while fewer
// than stages - s micro-batches are between forward and backward, then weight gradients.
inline std::vector<std::vector<Pass>> zero_bubble(int stages, int micro_batches) {
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
    const std::vector<Stage> before = all;
    for (int s = 0; s < stages; ++s) {
      Stage& stage = all[static_cast<std::size_t>(s)];
      const auto ready = [&](int neighbour, int mb, const std::vector<int> Stage::*ends) {
        const std::vector<int>& of = before[static_cast<std::size_t>(neighbour)].*ends;
        return mb < static_cast<int>(of.size()) && of[static_cast<std::size_t>(mb)] <= now;
      };
      const int b = stage.backward, f = stage.forward;
      const bool last = s + 1 == stages;
      if (b < f && (last || ready(s + 1, b, &Stage::backward_end))) {
        stage.passes.push_back({Pass::Kind::backward, stage.backward++, s});
        stage.backward_end.push_back(now + 1);
      } else if (f < micro_batches && f - stage.backward < stages - s &&
                 (s == 0 || ready(s - 1, f, &Stage::forward_end))) {
        stage.passes.push_back({Pass::Kind::forward, stage.forward++, s});
        stage.forward_end.push_back(now + 1);
      } else if (stage.weights < stage.backward) {
        stage.passes.push_back({Pass::Kind::weight_gradients, stage.weights++, s});
      }
    }
  }
  std::vector<std::vector<Pass>> passes;
  for (Stage& stage : all) passes.push_back(std::move(stage.passes));
  return passes;
}

// Interleaved 1F1B (arXiv 2104.04473): a stage has `virtual_stages` model chunks, and micro-batches, a multiple of the
// stages, pass through each in groups of as many as there are stages.
inline std::vector<Pass> interleaved(int stages, int virtual_stages, int stage, int micro_batches) {
  const int group = stages * virtual_stages, passes = micro_batches * virtual_stages;
  const auto pass = [&](Pass::Kind kind, int k) {
    const int turn = k % group / stages, own = kind == Pass::Kind::forward ? turn : virtual_stages - 1 - turn;
    return Pass{kind, k / group * stages + k % stages, own * stages + stage};
  };
  const int ahead =
      micro_batches == stages ? passes : std::min(passes, 2 * (stages - stage - 1) + (virtual_stages - 1) * stages);
  std::vector<Pass> out;
  for (int k = 0; k < passes + ahead; ++k) {
    if (k < passes) out.push_back(pass(Pass::Kind::forward, k));
    if (k >= ahead) out.push_back(pass(Pass::Kind::backward, k - ahead));
  }
  return out;
}

// For plan::Schedule::passes.
using PassesOfStage = std::function<std::vector<Pass>(int stage, int micro_batches)>;
inline PassesOfStage one_forward_one_backward_of(int stages) {
  return [=](int stage, int micro_batches) { return one_forward_one_backward(stages, stage, micro_batches); };
}
inline PassesOfStage zero_bubble_of(int stages) {
  return
      [=](int stage, int micro_batches) { return zero_bubble(stages, micro_batches)[static_cast<std::size_t>(stage)]; };
}

inline PassesOfStage interleaved_of(int stages, int virtual_stages) {
  return [=](int stage, int micro_batches) { return interleaved(stages, virtual_stages, stage, micro_batches); };
}

}  // namespace hawser::testing
