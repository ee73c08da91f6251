// `CountedSlots`: the slots of CountedRows (comm/group.h) in host memory, for groups on the CPU.
#pragma once

#include <cstring>

#include "base/error.h"
#include "comm/group.h"

namespace hawser::comm {

class CountedSlots {
 public:
  explicit CountedSlots(const CountedRows& of)
      : rows_(of.rows),
        counts_(of.counts.data<std::int32_t>()),
        bound_(of.rows.size(0) / of.counts.elements()),
        slots_(of.counts.elements()) {}

  std::int64_t slots() const { return slots_; }
  std::byte* data(std::int64_t slot) const { return rows_.raw() + slot * bound_ * row_bytes(); }
  // Of the counted rows. InternalError if the count is outside [0, bound].
  std::int64_t bytes(std::int64_t slot) const {
    const std::int64_t count = counts_[slot];
    HAWSER_CHECK(count >= 0 && count <= bound_, "slot ", slot, " has ", count, " of at most ", bound_, " rows");
    return count * row_bytes();
  }

 private:
  std::int64_t row_bytes() const { return rows_.size(1) * size_of(rows_.dtype()); }

  TensorView rows_;
  const std::int32_t* counts_;
  std::int64_t bound_, slots_;
};

// Copies the counted rows of slots [first, first + count) of `from` to those of `to`, which have the same counts.
inline void copy_counted(const CountedSlots& from, const CountedSlots& to, std::int64_t first, std::int64_t count) {
  for (std::int64_t slot = first; slot < first + count; ++slot) {
    HAWSER_CHECK(from.bytes(slot) == to.bytes(slot), "slot ", slot, ": ", from.bytes(slot), " bytes are sent and ",
                 to.bytes(slot), " received");
    std::memcpy(to.data(slot), from.data(slot), static_cast<std::size_t>(from.bytes(slot)));
  }
}

}  // namespace hawser::comm
