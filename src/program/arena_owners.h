// `ArenaOwners`: which buffer had each byte of an arena last. A sweep over buffers in the order of their first accesses
// finds whether buffers that share bytes are ordered.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>

namespace hawser::program {

class ArenaOwners {
 public:
  // Calls visit(buffer) for each buffer that had bytes of [begin, end), then gives them to `buffer`.
  template <class Visit>
  void take(std::int64_t begin, std::int64_t end, int buffer, const Visit& visit) {
    auto at = ranges_.upper_bound(begin);
    if (at != ranges_.begin() && std::prev(at)->second.end > begin) --at;
    while (at != ranges_.end() && at->first < end) {
      const std::int64_t first = at->first;
      const Range range = at->second;
      visit(range.buffer);
      at = ranges_.erase(at);
      if (first < begin) ranges_.emplace_hint(at, first, Range{begin, range.buffer});
      if (range.end > end) at = ranges_.emplace_hint(at, end, range);
    }
    ranges_.emplace_hint(at, begin, Range{end, buffer});
  }

 private:
  struct Range {
    std::int64_t end = 0;
    int buffer = 0;
  };
  std::map<std::int64_t, Range> ranges_;  // by begin; disjoint
};

}  // namespace hawser::program
