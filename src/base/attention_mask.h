// `AttentionMask`: which keys of its document a query sees, and whether scores depend on their distance.
#pragma once

#include <compare>
#include <cstdint>

namespace hawser {

// The query at position p sees the key at position r if
//   (not causal or r <= p) and (window == 0 or r > p - window)
// as in ops/attention/attention.h. So a causal mask with a window shows at most `window` keys, the query's own
// included.
struct AttentionMask {
  bool causal = true;
  std::int64_t window = 0;  // 0: none
  // Scores depend on p - r (ALiBi): the keys of a segment have consecutive positions even if every query sees all of
  // them.
  bool distances = false;

  auto operator<=>(const AttentionMask&) const = default;
};

}  // namespace hawser
