#include <algorithm>
#include <limits>

#include "base/error.h"
#include "program/placement.h"

namespace hawser::program {

namespace {

constexpr std::size_t kRecent = 1024;

}  // namespace

BufferIndex::BufferIndex(const std::vector<Buffer>& buffers) : recent_(kRecent, -1), buffers_(buffers) {
  for (std::size_t i = 0; i < buffers.size(); ++i) starts_.emplace_back(buffers[i].address, static_cast<int>(i));
  if (!std::is_sorted(starts_.begin(), starts_.end())) std::sort(starts_.begin(), starts_.end());
}

std::optional<int> BufferIndex::find(std::uint64_t address) const {
  int& recent = recent_[(address >> 20) % kRecent];  // regions of the meta device start at multiples of 1 MiB
  if (recent >= 0 && contains(recent, address)) return recent;
  const auto it = std::upper_bound(starts_.begin(), starts_.end(), std::pair(address, std::numeric_limits<int>::max()));
  if (it == starts_.begin()) return std::nullopt;
  const int buffer = std::prev(it)->second;
  if (!contains(buffer, address)) return std::nullopt;
  recent = buffer;
  return buffer;
}

Lifetimes::Lifetimes(const Trace& trace, const Order& order, const std::vector<Buffer>& buffers)
    : streams_(order.streams()),
      used_(buffers.size(), false),
      first_(buffers.size(), -1),
      last_(buffers.size(), -1),
      last_position_(buffers.size() * static_cast<std::size_t>(streams_), 0),
      completed_before_(buffers.size() * static_cast<std::size_t>(streams_), std::numeric_limits<int>::max()) {
  const BufferIndex index(buffers);
  for (std::size_t i = 0; i < trace.items.size(); ++i) {
    const TraceItem& item = trace.items[i];
    accessed_begin_.push_back(accessed_.size());
    for (const Access& access : item.record.accesses) {
      const std::optional<int> buffer = index.find(access.address);
      if (!buffer) continue;
      accessed_.push_back(*buffer);
      const auto b = static_cast<std::size_t>(*buffer);
      const Buffer& owner = buffers[b];
      HAWSER_CHECK(access.end() <= owner.address + static_cast<std::uint64_t>(owner.bytes), item.record.name,
                   " runs over the end of ", owner.name);
      used_[b] = true;
      if (first_[b] < 0) first_[b] = static_cast<int>(i);
      last_[b] = static_cast<int>(i);
      int& last = last_position_[b * static_cast<std::size_t>(streams_) + static_cast<std::size_t>(item.stream)];
      // A stream's clocks only grow, so the buffer's first access on it bounds its later ones.
      if (last == 0) {
        for (int s = 0; s < streams_; ++s) {
          int& completed = completed_before_[b * static_cast<std::size_t>(streams_) + static_cast<std::size_t>(s)];
          completed = std::min(completed, order.clock(static_cast<int>(i), s));
        }
      }
      last = order.position(static_cast<int>(i));
    }
  }
  accessed_begin_.push_back(accessed_.size());
}

bool Lifetimes::before(int a, int b) const {
  const int* last = &last_position_[static_cast<std::size_t>(a) * static_cast<std::size_t>(streams_)];
  const int* completed = &completed_before_[static_cast<std::size_t>(b) * static_cast<std::size_t>(streams_)];
  for (int s = 0; s < streams_; ++s) {
    if (last[s] > completed[s]) return false;
  }
  return true;
}

}  // namespace hawser::program
