#include "optim/tensor_runs.h"

#include "nn/segment_ranges.h"

namespace hawser::optim {

std::vector<TensorRun> tensor_runs(const FlatUpdate& u, double weight_decay) {
  std::vector<TensorRun> runs;
  for (const nn::SegmentRange& range : nn::segment_ranges(u.flat, u.begin, u.count)) {
    const nn::Segment& segment = nn::segment_of(u.flat, range);
    const nn::GlobalRuns runs_of_segment = nn::global_runs(segment);
    const bool decays = u.flat.params()[static_cast<std::size_t>(range.param)].decay;
    runs.push_back({.begin = range.at,
                    .count = range.count,
                    .weight_decay = decays ? weight_decay : 0.0,
                    .rounding = {.noise = {.key = RandomStream(u.seed, segment.name).key(),
                                           .first = range.first,
                                           .part = runs_of_segment.part,
                                           .whole = runs_of_segment.whole,
                                           .begin = runs_of_segment.begin},
                                 .step = u.step}});
  }
  return runs;
}

}  // namespace hawser::optim
