// `Order`: the happens-before relation of a trace, from stream order and events.
//
// Every item of the trace has a vector clock: for each stream, how many of its items are known to be over when the item
// starts. Lifetimes, races and placement are derived from these clocks, never from list order.
// Source: Lamport 1978; vector clocks as in Mattern 1989.
#pragma once

#include <cstdint>
#include <vector>

#include "device/trace.h"

namespace hawser::program {

class Order {
 public:
  explicit Order(const Trace& trace);

  int streams() const { return streams_; }
  // Position of an item in its stream, counted from 1.
  int position(int item) const { return position_[static_cast<std::size_t>(item)]; }
  // Items [1, clock(item, stream)] of `stream` are over before `item` starts.
  int clock(int item, int stream) const {
    return clock_[static_cast<std::size_t>(item) * static_cast<std::size_t>(streams_) +
                  static_cast<std::size_t>(stream)];
  }
  // True if a is over before b starts.
  bool before(int a, int b) const { return position(a) <= clock(b, stream_[static_cast<std::size_t>(a)]); }

 private:
  int streams_;
  std::vector<int> stream_, position_, clock_;
};

}  // namespace hawser::program
