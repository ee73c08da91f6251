#include "engine/fp8_blocks.h"

#include <algorithm>

#include "config/config.h"

namespace hawser::engine {

Fp8Blocks::Fp8Blocks(const Recipe& recipe) : place_(problem_at(recipe, "precision.fp8.layers")) {
  for (const std::string& entry : recipe.precision.fp8.layers) {
    if (const auto range = block_range_of(entry)) ranges_.push_back({entry, *range});
  }
}

bool Fp8Blocks::contains(int block) const {
  return std::ranges::any_of(
      ranges_, [&](const Entry& entry) { return block >= entry.range.first && block <= entry.range.last; });
}

void Fp8Blocks::check(int blocks, Problems& problems) const {
  for (const Entry& entry : ranges_) {
    if (entry.range.all() || entry.range.last < blocks) continue;
    Problem beyond = place_;
    beyond.got = entry.text;
    beyond.what = "the model has no such block";
    beyond.expected = cat("blocks 0 to ", blocks - 1);
    problems.add(beyond);
  }
}

}  // namespace hawser::engine
