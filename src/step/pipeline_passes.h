// The schedules of pipeline stages: the passes of each stage, in order. Model chunk c is on stage c % stages.
//
// Two stages, three micro-batches; F1 is forward of micro-batch 1, B1 its backward pass, W1 its weight gradients, which
// follow B1 at once where the schedule does not delay them:
//
//   GPipe   stage 0   F0 F1 F2 B0 B1 B2           1F1B    stage 0   F0 F1 B0 F2 B1 B2
//           stage 1   F0 F1 F2 B0 B1 B2                   stage 1   F0 B0 F1 B1 F2 B2
//   ZB-H1   stage 0   F0 F1 B0 W0 F2 B1 W1 B2 W2
//           stage 1   F0 B0 F1 B1 W0 F2 B2 W1 W2
//
// Every schedule is right for any number of stages and micro-batches: with fewer micro-batches than stages, some stages
// wait longer. GPipe is grouped_passes() (step/pass.h) of one group.
#pragma once

#include <vector>

#include "step/pass.h"

namespace hawser::step {

// 1F1B (PipeDream-Flush; arXiv 2104.04473): stage s has at most stages - s micro-batches between forward and backward.
std::vector<Pass> one_forward_one_backward(int stages, int stage, int micro_batches);

// Interleaved 1F1B (arXiv 2104.04473): a stage has `virtual_stages` model chunks, at least 2. Micro-batches pass
// through each model chunk in groups of as many as there are stages; the last group may have fewer. With bubbles
// `virtual_stages` times shorter than those of 1F1B, and more micro-batches between forward and backward.
std::vector<Pass> interleaved(int stages, int virtual_stages, int stage, int micro_batches);

// ZB-H1 (arXiv 2401.10241), by stage, for passes of equal duration. A forward pass goes first while fewer than stages - s
// micro-batches are between forward and backward, and fewer than `stages` between forward and weight gradients: the
// first stage of 1F1B has as many. Then backward passes, then delayed weight gradients
// (nn::SavePolicy::delay_weight_gradients).
std::vector<std::vector<Pass>> zero_bubble(int stages, int micro_batches);

}  // namespace hawser::step
