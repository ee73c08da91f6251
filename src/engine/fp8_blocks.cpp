#include "engine/fp8_blocks.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "config/config.h"

namespace hawser::engine {

namespace {

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

}  // namespace

Fp8Blocks::Fp8Blocks(const Recipe& recipe, Problems& problems) : place_(problem_at(recipe, "precision.fp8.layers")) {
  for (const std::string& entry : recipe.precision.fp8.layers) {
    if (entry == "all") {
      all_ = true;
      continue;
    }
    const std::string_view text = entry;
    const std::size_t dash = text.find('-');
    const std::optional<int> first = number(text.substr(0, dash)),
                             last = dash == text.npos ? first : number(text.substr(dash + 1));
    if (!first || !last || *last < *first) {
      Problem wrong = place_;
      wrong.got = entry;
      wrong.what = "not a block or a range of blocks";
      wrong.expected = "all, numbers from 0, or ranges such as 2-29";
      problems.add(wrong);
      continue;
    }
    ranges_.push_back({entry, *first, *last});
  }
}

bool Fp8Blocks::contains(int block) const {
  return all_ || std::ranges::any_of(ranges_, [&](const Range& r) { return block >= r.first && block <= r.last; });
}

void Fp8Blocks::check(int blocks, Problems& problems) const {
  for (const Range& range : ranges_) {
    if (range.last < blocks) continue;
    Problem beyond = place_;
    beyond.got = range.entry;
    beyond.what = "the model has no such block";
    beyond.expected = cat("blocks 0 to ", blocks - 1);
    problems.add(beyond);
  }
}

}  // namespace hawser::engine
