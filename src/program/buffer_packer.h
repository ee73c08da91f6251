// `Packer`: first-fit packing of buffers, given which pairs may not share bytes; the algorithm of place().
#pragma once

#include <cstdint>
#include <vector>

#include "program/occupied_ranges.h"
#include "program/placement.h"

namespace hawser::program {

// Sizes and offsets here are in units of the alignment.
std::int64_t units_of(const Buffer& buffer);

class Packer {
 public:
  Packer(const Trace& trace, const Order& order, const Lifetimes& lifetimes, const std::vector<Buffer>& buffers,
         const std::vector<int>& used);

  // Places buffers in the given order, each at the lowest offset that is free of all buffers it conflicts with. With
  // `reuse`, a free offset where a buffer of equal size was placed is preferred, lowest first, so that buffers of one
  // size alternate between few offsets. Returns the units used; stops and returns more than `limit` as soon as it uses
  // more.
  std::int64_t put_down(const std::vector<int>& order, bool reuse, std::int64_t limit);
  // Keeps the result of the last put_down(), which placed all buffers: later calls with a similar order compute only
  // what differs from it. Results do not depend on it.
  void keep();
  std::int64_t offset(int buffer) const {
    return offsets_[static_cast<std::size_t>(rank_[static_cast<std::size_t>(buffer)])];
  }
  // A measure of the time that put_down() has taken so far: conflicts of placed buffers, as if nothing had been kept.
  std::size_t work() const { return work_; }

 private:
  struct Part {
    std::size_t begin = 0, end = 0;
  };
  struct Ranked {};
  struct Kept {
    std::vector<int> order;
    bool reuse = false;
    std::vector<std::int64_t> offsets;
    std::vector<bool> new_place;
  };

  // `by_first`: the used buffers, in the order of their first accesses.
  Packer(const Trace& trace, const Order& order, const Lifetimes& lifetimes, const std::vector<Buffer>& buffers,
         const std::vector<int>& by_first, Ranked);
  void clear();
  std::int64_t fit(std::size_t buffer, bool reuse);
  void add_place(std::size_t buffer, std::int64_t at);
  // A buffer has another offset than in kept_, or was another one that added a place.
  void differs(std::size_t buffer, bool offset);

  // Buffers have ranks, in the order of their first accesses. Everything below is by rank, or lists ranks.
  std::vector<int> rank_;  // by buffer
  std::vector<std::int64_t> units_;
  // Conflicts are buffers whose accesses overlap in the trace, and those whose accesses do not, but are not ordered.
  // The first are found from occupied_, the second are listed.
  OccupiedRanges occupied_;
  std::vector<int> unordered_;  // from unordered_of_
  std::vector<Part> unordered_of_;
  std::vector<std::size_t> conflicts_;  // their number
  std::vector<std::size_t> size_of_;    // index of its size among all sizes
  std::vector<std::int64_t> offsets_;
  std::vector<std::vector<std::int64_t>> places_;  // by size: offsets used by buffers of that size
  std::vector<bool> new_place_;                    // it added its offset to places_
  Kept kept_;
  std::vector<int> last_order_;
  bool last_reuse_ = false;
  std::vector<bool> stale_;         // an unordered conflict placed before it may have another offset than in kept_
  std::vector<bool> other_places_;  // by size: places_ may differ from those at this point of kept_
  std::size_t work_ = 0;
};

}  // namespace hawser::program
