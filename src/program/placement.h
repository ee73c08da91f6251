// `Placement`: offsets of every buffer in the arena, from their lifetimes. Two buffers may share bytes only if every
// access to one is over before any access to the other starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "device/trace.h"
#include "program/order.h"

namespace hawser::program {

// Purpose of buffers whose contents persist from step to step: parameters, moments. Their owner places them, and they
// share bytes with no other buffer.
inline const std::string kPersistent = "persistent";

// A buffer as allocated on the meta device.
struct Buffer {
  std::string name;           // "saved/attention/layer 3/mb 0", for reports
  std::string purpose;        // "activations", "weights", "gradients", "workspace" …
  std::uint64_t address = 0;  // its region on meta
  std::int64_t bytes = 0;
};

struct Placement {
  std::vector<std::int64_t> offsets;  // by buffer, aligned to Device::kAlignment; -1: persistent or never used
  std::int64_t bytes = 0;             // of the step's arena
  // A lower bound of `bytes`: the largest sum found of buffers that are live at once, about when `peak_item` starts. No
  // two of these buffers may share bytes.
  std::int64_t live_bytes = 0;
  int peak_item = -1;
  std::vector<int> peak_buffers;  // live at the peak, largest first
};

// First and last accesses of every buffer, by stream.
class Lifetimes {
 public:
  Lifetimes(const Trace& trace, const Order& order, const std::vector<Buffer>& buffers);

  bool used(int buffer) const { return used_[static_cast<std::size_t>(buffer)]; }
  // True if every access to a is over before any access to b starts.
  bool before(int a, int b) const;
  bool disjoint(int a, int b) const { return before(a, b) || before(b, a); }
  // Items of the first and last access in list order.
  int first_item(int buffer) const { return first_[static_cast<std::size_t>(buffer)]; }
  int last_item(int buffer) const { return last_[static_cast<std::size_t>(buffer)]; }
  // Position in the stream of the buffer's last access on it, 0 if there is none.
  int last_position(int buffer, int stream) const {
    return last_position_[static_cast<std::size_t>(buffer * streams_ + stream)];
  }
  // The number of items of the stream that are over before any access to the buffer starts.
  int completed_before(int buffer, int stream) const {
    return completed_before_[static_cast<std::size_t>(buffer * streams_ + stream)];
  }

 private:
  int streams_;
  std::vector<bool> used_;
  std::vector<int> first_, last_;
  std::vector<int> last_position_, completed_before_;  // [buffer][stream]
};

// Finds the buffer that an address of the trace belongs to.
class BufferIndex {
 public:
  explicit BufferIndex(const std::vector<Buffer>& buffers);
  int find(std::uint64_t address) const;  // -1: none

 private:
  std::vector<std::pair<std::uint64_t, int>> starts_;
  const std::vector<Buffer>& buffers_;
};

enum class Placing {
  offsets,   // the full placement
  estimate,  // only the lower bound: no offsets, `bytes` is `live_bytes`
};

// Computes offsets of all buffers except the persistent ones. The result depends only on the arguments.
Placement place(const Trace& trace, const std::vector<Buffer>& buffers, Placing placing = Placing::offsets);

}  // namespace hawser::program
