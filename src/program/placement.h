// `Placement`: the offset of every buffer in the arena, computed from the buffers' lifetimes. Two buffers may share
// bytes only if every access to one has completed before any access to the other starts.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/trace.h"
#include "program/order.h"

namespace hawser::program {

// Where a buffer is.
enum class Space {
  device,  // in the step's arena on the device
  host,    // in the step's arena of pinned host memory, such as offloaded activations
  // Outside the arenas, in the model state (step/state.h): parameters and moments. Its contents persist from step to
  // step; it shares bytes with no other buffer.
  persistent,       // on the device
  persistent_host,  // in pinned host memory
};
constexpr bool is_persistent(Space space) {
  return space == Space::persistent || space == Space::persistent_host;
}

// A buffer as allocated on the meta device.
struct Buffer {
  std::string name;           // "saved/attention/layer 3/mb 0", for reports
  std::string category;       // "activations", "weights", "gradients", "workspace" …
  std::uint64_t address = 0;  // on the meta device: the buffer is [address, address + bytes)
  std::int64_t bytes = 0;
  Space space = Space::device;
};

// Of the buffers of one space.
struct Placement {
  // By buffer: bytes from the arena's begin, a multiple of Device::kAlignment. A buffer of another space, or one that
  // is never accessed, has -1.
  std::vector<std::int64_t> offsets;
  std::int64_t bytes = 0;  // size of the step's arena
  bool placed = false;     // offsets were computed; otherwise `bytes` is an estimate
  // Indices of the largest set found of buffers that are live at the same time, largest buffer first. No two of them
  // may share bytes.
  std::vector<int> peak_buffers;
  // Sum of the sizes of peak_buffers, each rounded up to Device::kAlignment. A lower bound of `bytes`.
  std::int64_t live_bytes = 0;
  // Index of the trace item near whose start they are live: the first access to the buffer that completes the peak. It
  // is -1 if no buffer is placed.
  int peak_item = -1;
};

// When each buffer is accessed: its first and last accesses, and their order relative to the items of every stream.
// Indices of buffers, streams and items are those of the constructor's arguments.
class Lifetimes {
 public:
  Lifetimes(const Trace& trace, const Order& order, const std::vector<Buffer>& buffers);

  bool used(int buffer) const { return used_[static_cast<std::size_t>(buffer)]; }
  // True if every access to `a` has completed before any access to `b` starts.
  bool before(int a, int b) const;
  bool disjoint(int a, int b) const { return before(a, b) || before(b, a); }
  // Indices of the first and last trace items, in the order of the trace, that access the buffer; -1 if not used().
  int first_item(int buffer) const { return first_[static_cast<std::size_t>(buffer)]; }
  int last_item(int buffer) const { return last_[static_cast<std::size_t>(buffer)]; }
  // The buffers that an item accesses, one for each access to a buffer.
  std::span<const int> accessed(int item) const {
    const auto i = static_cast<std::size_t>(item);
    return std::span(accessed_).subspan(accessed_begin_[i], accessed_begin_[i + 1] - accessed_begin_[i]);
  }
  // 1-based position, among the items of `stream`, of that stream's last access to the buffer. It is 0 if there is
  // none.
  int last_position(int buffer, int stream) const {
    return last_position_[static_cast<std::size_t>(buffer * streams_ + stream)];
  }
  // The number of items of `stream` that are guaranteed to have completed before any access to the buffer starts: those
  // at positions [1, completed_before]. INT_MAX if the buffer is never accessed.
  int completed_before(int buffer, int stream) const {
    return completed_before_[static_cast<std::size_t>(buffer * streams_ + stream)];
  }

 private:
  int streams_;
  std::vector<bool> used_;
  std::vector<int> first_, last_;
  std::vector<int> last_position_, completed_before_;  // [buffer][stream]
  std::vector<int> accessed_;                          // by item, from accessed_begin_[item]
  std::vector<std::size_t> accessed_begin_;
};

// Finds the buffer that contains an address of the trace. `buffers` outlives it. One thread at a time may call find().
class BufferIndex {
 public:
  explicit BufferIndex(const std::vector<Buffer>& buffers);
  std::optional<int> find(std::uint64_t address) const;  // index of the buffer

 private:
  bool contains(int buffer, std::uint64_t address) const {
    const Buffer& b = buffers_[static_cast<std::size_t>(buffer)];
    return address >= b.address && address < b.address + static_cast<std::uint64_t>(b.bytes);
  }

  std::vector<std::pair<std::uint64_t, int>> starts_;
  // A step accesses few buffers at a time: the results of recent calls, by bits of the address.
  mutable std::vector<int> recent_;
  const std::vector<Buffer>& buffers_;
};

enum class Placing {
  offsets,   // computes all of Placement
  estimate,  // computes only the lower bound: all offsets are -1, and `bytes` is `live_bytes`
};

// Computes offsets of all buffers of a space, device or host; only the estimate if that needs more than `max_bytes`.
// The result depends only on the arguments.
Placement place(const Trace& trace, const std::vector<Buffer>& buffers, Placing placing = Placing::offsets,
                std::int64_t max_bytes = std::numeric_limits<std::int64_t>::max(), Space space = Space::device);

}  // namespace hawser::program
