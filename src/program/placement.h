// Where buffers lie: two may share bytes only if every access to the one is over before any access to the other starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/trace.h"
#include "program/order.h"

namespace hawser::program {

// Purpose of buffers that hold their contents from step to step: parameters, moments. They are placed apart, by their
// owner, and share bytes with nobody.
inline const std::string kPersistent = "persistent";

// A buffer as the meta device saw it.
struct Buffer {
  std::string name;           // "saved/attention/layer 3/mb 0", for reports
  std::string purpose;        // "activations", "weights", "gradients", "workspace" …
  std::uint64_t address = 0;  // its region on meta
  std::int64_t bytes = 0;
};

struct Placement {
  std::vector<std::int64_t> offsets;  // a buffer each, aligned to Device::kAlignment; -1: persistent or never used
  std::int64_t bytes = 0;             // of the step's arena
  // The most bytes found that the relation lets exist together, about when `peak_item` starts: no two of these buffers
  // may share bytes, so no placement can be smaller than this.
  std::int64_t live_bytes = 0;
  int peak_item = -1;
  std::vector<int> peak_buffers;  // live at the peak, largest first; no two of them may share bytes
};

// First accesses and last accesses of every buffer, stream by stream.
class Lifetimes {
 public:
  Lifetimes(const Trace& trace, const Order& order, const std::vector<Buffer>& buffers);

  bool used(int buffer) const { return used_[static_cast<std::size_t>(buffer)]; }
  // Every access to a is over before any access to b starts.
  bool before(int a, int b) const;
  bool disjoint(int a, int b) const { return before(a, b) || before(b, a); }
  // Items of the first and last access in list order.
  int first_item(int buffer) const { return first_[static_cast<std::size_t>(buffer)]; }
  int last_item(int buffer) const { return last_[static_cast<std::size_t>(buffer)]; }
  // Position in the stream of the last access there, 0 where there is none.
  int last_position(int buffer, int stream) const {
    return last_position_[static_cast<std::size_t>(buffer * streams_ + stream)];
  }
  // So many items of the stream are over before any access to the buffer starts.
  int known_over(int buffer, int stream) const {
    return known_over_[static_cast<std::size_t>(buffer * streams_ + stream)];
  }

 private:
  int streams_;
  std::vector<bool> used_;
  std::vector<int> first_, last_;
  std::vector<int> last_position_, known_over_;  // [buffer][stream]
};

// The buffer each address of the trace belongs to.
class BufferIndex {
 public:
  explicit BufferIndex(const std::vector<Buffer>& buffers);
  int find(std::uint64_t address) const;  // -1: none

 private:
  std::vector<std::pair<std::uint64_t, int>> starts_;
  const std::vector<Buffer>& buffers_;
};

enum class Placing {
  offsets,   // everything
  estimate,  // only the bound: no offsets, `bytes` is `live_bytes`
};

// Offsets for all buffers but the persistent ones. The result depends on the arguments alone.
Placement place(const Trace& trace, const std::vector<Buffer>& buffers, Placing placing = Placing::offsets);

}  // namespace hawser::program
