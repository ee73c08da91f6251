#include "optim/tensor_runs.h"

#include "nn/segment_ranges.h"

namespace hawser::optim {

std::vector<TensorRun> tensor_runs(const FlatUpdate& u, double weight_decay) {
  std::vector<TensorRun> runs;
  for (const nn::SegmentRange& range : nn::segment_ranges(u.flat, u.begin, u.count)) {
    const nn::Segment& segment = nn::segment_of(u.flat, range);
    // As nn::for_each_global_run.
    const nn::Slice slice = segment.slice.value_or(nn::Slice{.size = segment.global[0]});
    std::int64_t inner = 1;
    for (int dim = slice.dim + 1; dim < segment.global.rank(); ++dim) inner *= segment.global[dim];
    const bool decays = u.flat.params()[static_cast<std::size_t>(range.param)].decay;
    runs.push_back({.begin = range.at,
                    .count = range.count,
                    .weight_decay = decays ? weight_decay : 0.0,
                    .rounding = {.key = RandomStream(u.seed, segment.name).key(),
                                 .step = u.step,
                                 .first = range.first,
                                 .part = slice.size * inner,
                                 .whole = segment.global[slice.dim] * inner,
                                 .begin = slice.begin * inner}});
  }
  return runs;
}

}  // namespace hawser::optim
