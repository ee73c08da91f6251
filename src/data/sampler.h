// The order of the data: a function of the seed and the step alone.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/philox.h"

namespace hawser::data {

// A permutation of 0 .. count-1 without a table: a Feistel network over the next power of four, walked until it lands
// inside. O(1) memory and time, so the order of a billion sequences costs nothing.
class Shuffle {
 public:
  Shuffle(std::uint64_t seed, std::string_view name, std::int64_t count, std::int64_t epoch = 0);
  std::int64_t at(std::int64_t index) const;

 private:
  RandomStream stream_;
  std::int64_t count_, epoch_;
  int half_bits_;
};

// Sequence number `index` of the endless stream: every sequence of the set once, in a new order each epoch. Step s of a
// run trains on indices s * global_batch_size up to (s + 1) * global_batch_size, whatever the layout.
std::int64_t sequence_at(std::uint64_t seed, std::int64_t count, std::int64_t index);

}  // namespace hawser::data
