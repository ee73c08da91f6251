// First-fit of buffers under the relation of who may not share bytes with whom; the inside of place().
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "program/placement.h"

namespace hawser::program {

// Sizes and offsets are counted in units of the alignment here.
std::int64_t units_of(const Buffer& buffer);

class Packer {
 public:
  Packer(const Trace& trace, const Order& order, const Lifetimes& lifetimes, const std::vector<Buffer>& buffers,
         const std::vector<int>& used);

  // Puts buffers down in the given order, each at the lowest offset that is free of all it may not share with; with
  // `reuse`, rather at the lowest free offset where one of its size has lain before, so that buffers of one size take
  // turns in few places. Returns the units taken; gives up, and returns more than `limit`, as soon as it takes more.
  std::int64_t put_down(const std::vector<int>& order, bool reuse, std::int64_t limit);
  std::int64_t offset(int buffer) const { return offsets_[static_cast<std::size_t>(buffer)]; }
  std::size_t work() const { return work_; }  // conflicts looked at so far

 private:
  struct Range {
    std::size_t begin = 0, end = 0;
  };
  using Runs = std::vector<std::pair<std::int64_t, std::int64_t>>;  // ascending, none touching the next: mostly one

  static void take(Runs& runs, std::int64_t begin, std::int64_t end);
  std::int64_t fit(std::size_t buffer, bool reuse);

  std::vector<std::int64_t> units_;
  std::vector<int> conflicts_;
  std::vector<Range> earlier_, later_;  // a buffer's conflicts: with those first accessed before it, and behind it
  std::vector<std::int64_t> offsets_;
  std::vector<Runs> taken_;                                   // what conflicts that lie already keep from a buffer
  std::map<std::int64_t, std::vector<std::int64_t>> places_;  // units -> offsets where such buffers have lain
  std::size_t work_ = 0;
};

}  // namespace hawser::program
