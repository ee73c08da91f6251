// `CountedSlots`: the slots of CountedRows (comm/group.h) in host memory, for groups on the CPU.
#pragma once

#include <algorithm>
#include <span>

#include "base/error.h"
#include "comm/group.h"

namespace hawser::comm {

class CountedSlots {
 public:
  CountedSlots(const CountedRows& of, std::int64_t bound)
      : rows_(of.rows),
        counts_(of.counts.data<std::int32_t>()),
        offsets_(of.offsets.data<std::int32_t>()),
        slots_(of.counts.elements()),
        bound_(bound) {}

  std::int64_t slots() const { return slots_; }
  // The rows of a slot. InternalError if they are more than the bound, or outside of the matrix.
  std::span<std::byte> rows(std::int64_t slot) const {
    const std::int64_t count = counts_[slot], first = offsets_[slot], all = rows_.size(0);
    HAWSER_CHECK(count >= 0 && count <= bound_, "slot ", slot, " has ", count, " of at most ", bound_, " rows");
    if (count == 0) return {};
    HAWSER_CHECK(first >= 0 && first + count <= all, "slot ", slot, " has ", count, " rows from ", first, " of ", all);
    const std::int64_t bytes = rows_.size(1) * size_of(rows_.dtype());
    return {rows_.raw() + first * bytes, static_cast<std::size_t>(count * bytes)};
  }

 private:
  TensorView rows_;
  const std::int32_t *counts_, *offsets_;
  std::int64_t slots_, bound_;
};

// Copies slots [first, first + count) of `from` to those of `to`, which have the same counts.
inline void copy_counted(const CountedSlots& from, const CountedSlots& to, std::int64_t first, std::int64_t count) {
  for (std::int64_t slot = first; slot < first + count; ++slot) {
    const std::span<std::byte> rows = from.rows(slot), there = to.rows(slot);
    HAWSER_CHECK(rows.size() == there.size(), "slot ", slot, ": ", rows.size(), " bytes are sent and ", there.size(),
                 " received");
    std::copy(rows.begin(), rows.end(), there.begin());
  }
}

}  // namespace hawser::comm
