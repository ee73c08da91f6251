// `Shuffle`, `sequence_at`: the data order, a function of the seed and the step only.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/philox.h"

namespace hawser::batches {

// A permutation of 0 .. count-1 without a table: a Feistel network over the next power of four, with cycle walking.
// O(1) memory and expected time for any count.
class Shuffle {
 public:
  Shuffle(std::uint64_t seed, std::string_view name, std::int64_t count, std::int64_t epoch = 0);
  std::int64_t at(std::int64_t index) const;

 private:
  RandomStream stream_;
  std::int64_t count_, epoch_;
  int half_bits_;
};

// Sequence number `index` of the endless stream, which has every sequence of the set once per epoch, in a new order
// each epoch. For any layout, step s of a run trains on the indices
//
//   s * global_batch_size .. (s + 1) * global_batch_size - 1
std::int64_t sequence_at(std::uint64_t seed, std::int64_t count, std::int64_t index);

}  // namespace hawser::batches
