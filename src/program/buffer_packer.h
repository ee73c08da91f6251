// `Packer`: first-fit packing of buffers, given which pairs may not share bytes; the algorithm of place().
#pragma once

#include <cstdint>
#include <map>
#include <vector>

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
  std::int64_t offset(int buffer) const { return offsets_[static_cast<std::size_t>(buffer)]; }
  std::size_t work() const { return work_; }  // conflicts examined so far

 private:
  struct Range {
    std::size_t begin = 0, end = 0;
  };
  using Runs = std::vector<std::pair<std::int64_t, std::int64_t>>;  // ascending and disjoint; mostly one

  static void take(Runs& runs, std::int64_t begin, std::int64_t end);
  std::int64_t fit(std::size_t buffer, bool reuse);

  std::vector<std::int64_t> units_;
  std::vector<int> conflicts_;
  std::vector<Range> earlier_, later_;  // a buffer's conflicts with buffers first accessed before it, and after it
  std::vector<std::int64_t> offsets_;
  std::vector<Runs> taken_;                                   // by buffer: ranges taken by conflicts already placed
  std::map<std::int64_t, std::vector<std::int64_t>> places_;  // units -> offsets used by buffers of that size
  std::size_t work_ = 0;
};

}  // namespace hawser::program
