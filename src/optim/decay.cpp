#include "optim/decay.h"

#include <algorithm>

namespace hawser::optim {

std::vector<UpdateRun> update_runs(const nn::Flat& flat, std::int64_t begin, std::int64_t count, double weight_decay) {
  HAWSER_CHECK(begin >= 0 && count >= 0, "elements [", begin, ", ", begin + count, ")");
  std::vector<UpdateRun> runs;
  const int params = static_cast<int>(flat.params().size());
  for (int i = 0; i < params; ++i) {
    // Up to the next parameter: includes the gap after this one, and the padding after the last.
    const std::int64_t from = std::max(flat.offset(i), begin);
    const std::int64_t to = i + 1 < params ? std::min(flat.offset(i + 1), begin + count) : begin + count;
    if (from >= to) continue;
    const double decay = flat.params()[static_cast<std::size_t>(i)].decay ? weight_decay : 0.0;
    if (!runs.empty() && runs.back().weight_decay == decay) {
      runs.back().count += to - from;
    } else {
      runs.push_back({from - begin, to - from, decay});
    }
  }
  return runs;
}

}  // namespace hawser::optim
