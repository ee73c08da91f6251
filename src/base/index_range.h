// `IndexRange`: consecutive indices, `EqualShard`: which of several equal shards.
//
//   IndexRange{.begin = 4096, .count = 1024}    // 4096 to 5119: the rows of k_proj in a fused QKV
//   EqualShard{.index = 1, .count = 4}          // the second of four: of 4096 elements, 1024 to 2047
#pragma once

#include <cstdint>

namespace hawser {

struct IndexRange {
  std::int64_t begin = 0, count = 0;

  std::int64_t end() const { return begin + count; }
  bool operator==(const IndexRange&) const = default;
};

struct EqualShard {
  int index = 0, count = 1;

  bool operator==(const EqualShard&) const = default;
};

}  // namespace hawser
