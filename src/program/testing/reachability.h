// `Reachability`: happens-before by reachability in the graph of stream order and events; slow. The reference for tests
// of Order and of everything built on it.
#pragma once

#include <map>
#include <vector>

#include "device/trace.h"
#include "program/placement.h"

namespace hawser::program::testing {

class Reachability {
 public:
  explicit Reachability(const Trace& trace) : words_((trace.items.size() + 63) / 64) {
    std::map<int, std::size_t> previous;
    reached_.assign(trace.items.size(), std::vector<std::uint64_t>(words_, 0));
    for (std::size_t i = 0; i < trace.items.size(); ++i) {
      const TraceItem& item = trace.items[i];
      if (const auto it = previous.find(item.stream); it != previous.end()) take(i, it->second);
      if (item.kind == TraceItem::Kind::wait) take(i, static_cast<std::size_t>(item.target));
      previous[item.stream] = i;
    }
  }
  // True if a is over before b starts.
  bool before(int a, int b) const {
    const auto i = static_cast<std::size_t>(a);
    return (reached_[static_cast<std::size_t>(b)][i / 64] >> (i % 64) & 1) != 0;
  }

 private:
  void take(std::size_t item, std::size_t earlier) {
    for (std::size_t w = 0; w < words_; ++w) reached_[item][w] |= reached_[earlier][w];
    reached_[item][earlier / 64] |= std::uint64_t{1} << (earlier % 64);
  }
  std::size_t words_;
  std::vector<std::vector<std::uint64_t>> reached_;
};

struct ItemAccess {
  int item, buffer;
  Access access;
};

// Every access of the trace and its buffer, by comparing all pairs.
inline std::vector<ItemAccess> accesses_of(const Trace& trace, const std::vector<Buffer>& buffers) {
  std::vector<ItemAccess> out;
  for (std::size_t i = 0; i < trace.items.size(); ++i) {
    for (const Access& access : trace.items[i].record.accesses) {
      for (std::size_t b = 0; b < buffers.size(); ++b) {
        if (access.address >= buffers[b].address &&
            access.end() <= buffers[b].address + static_cast<std::uint64_t>(buffers[b].bytes)) {
          out.push_back({static_cast<int>(i), static_cast<int>(b), access});
        }
      }
    }
  }
  return out;
}

}  // namespace hawser::program::testing
