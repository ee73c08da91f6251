#include "program/placement.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/units.h"
#include "device/device.h"

namespace hawser::program {

BufferIndex::BufferIndex(const std::vector<Buffer>& buffers) : buffers_(buffers) {
  for (std::size_t i = 0; i < buffers.size(); ++i) starts_.emplace_back(buffers[i].address, static_cast<int>(i));
  std::sort(starts_.begin(), starts_.end());
}

int BufferIndex::find(std::uint64_t address) const {
  auto it = std::upper_bound(starts_.begin(), starts_.end(), std::pair(address, std::numeric_limits<int>::max()));
  if (it == starts_.begin()) return -1;
  const int buffer = std::prev(it)->second;
  const Buffer& b = buffers_[static_cast<std::size_t>(buffer)];
  return address < b.address + static_cast<std::uint64_t>(b.bytes) ? buffer : -1;
}

Lifetimes::Lifetimes(const Trace& trace, const Order& order, const std::vector<Buffer>& buffers)
    : streams_(order.streams()),
      used_(buffers.size(), false),
      first_(buffers.size(), -1),
      last_(buffers.size(), -1),
      last_position_(buffers.size() * static_cast<std::size_t>(streams_), 0),
      known_over_(buffers.size() * static_cast<std::size_t>(streams_), std::numeric_limits<int>::max()) {
  const BufferIndex index(buffers);
  for (std::size_t i = 0; i < trace.items.size(); ++i) {
    const TraceItem& item = trace.items[i];
    for (const Access& access : item.booking.accesses) {
      const int buffer = index.find(access.address);
      if (buffer < 0) continue;
      const auto b = static_cast<std::size_t>(buffer);
      const Buffer& owner = buffers[b];
      HAWSER_CHECK(access.end() <= owner.address + static_cast<std::uint64_t>(owner.bytes), item.booking.name,
                   " runs over the end of ", owner.name);
      used_[b] = true;
      if (first_[b] < 0) first_[b] = static_cast<int>(i);
      last_[b] = static_cast<int>(i);
      int& last = last_position_[b * static_cast<std::size_t>(streams_) + static_cast<std::size_t>(item.stream)];
      // A stream's clocks only grow: its first access bounds all its later ones.
      if (last == 0) {
        for (int s = 0; s < streams_; ++s) {
          int& known = known_over_[b * static_cast<std::size_t>(streams_) + static_cast<std::size_t>(s)];
          known = std::min(known, order.clock(static_cast<int>(i), s));
        }
      }
      last = order.position(static_cast<int>(i));
    }
  }
}

bool Lifetimes::before(int a, int b) const {
  const int* last = &last_position_[static_cast<std::size_t>(a) * static_cast<std::size_t>(streams_)];
  const int* known = &known_over_[static_cast<std::size_t>(b) * static_cast<std::size_t>(streams_)];
  for (int s = 0; s < streams_; ++s) {
    if (last[s] > known[s]) return false;
  }
  return true;
}

namespace {

// The live set is largest at some buffer's first access. Two buffers that are not disjoint are both live at the first
// access of the later one.
void find_peak(const Lifetimes& lifetimes, const std::vector<Buffer>& buffers, const std::vector<int>& used,
               Placement& out) {
  std::vector<int> by_first = used;
  std::sort(by_first.begin(), by_first.end(),
            [&](int a, int b) { return lifetimes.first_item(a) < lifetimes.first_item(b); });
  std::vector<int> live;
  std::int64_t bytes = 0;
  for (const int buffer : by_first) {
    std::erase_if(live, [&](int other) {
      if (!lifetimes.before(other, buffer)) return false;
      bytes -= round_up(buffers[static_cast<std::size_t>(other)].bytes, Device::kAlignment);
      return true;
    });
    live.push_back(buffer);
    bytes += round_up(buffers[static_cast<std::size_t>(buffer)].bytes, Device::kAlignment);
    if (bytes > out.live_bytes) {
      out.live_bytes = bytes;
      out.peak_item = lifetimes.first_item(buffer);
      out.peak_buffers = live;
    }
  }
  std::sort(out.peak_buffers.begin(), out.peak_buffers.end(), [&](int a, int b) {
    return buffers[static_cast<std::size_t>(a)].bytes > buffers[static_cast<std::size_t>(b)].bytes;
  });
}

// Puts buffers down in the given order, each at the lowest offset that is free of all it may not share with.
std::int64_t put_down(const std::vector<int>& order, const std::vector<std::vector<int>>& conflicts,
                      const std::vector<Buffer>& buffers, std::vector<std::int64_t>& offsets) {
  std::fill(offsets.begin(), offsets.end(), -1);
  std::int64_t top = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> taken;
  for (const int buffer : order) {
    const std::int64_t bytes = round_up(buffers[static_cast<std::size_t>(buffer)].bytes, Device::kAlignment);
    taken.clear();
    for (const int other : conflicts[static_cast<std::size_t>(buffer)]) {
      const std::int64_t at = offsets[static_cast<std::size_t>(other)];
      if (at >= 0) {
        taken.emplace_back(at, at + round_up(buffers[static_cast<std::size_t>(other)].bytes, Device::kAlignment));
      }
    }
    std::sort(taken.begin(), taken.end());
    std::int64_t at = 0;
    for (const auto& [begin, end] : taken) {
      if (at + bytes <= begin) break;
      at = std::max(at, end);
    }
    offsets[static_cast<std::size_t>(buffer)] = at;
    top = std::max(top, at + bytes);
  }
  return top;
}

}  // namespace

Placement place(const Trace& trace, const std::vector<Buffer>& buffers) {
  const Order order(trace);
  const Lifetimes lifetimes(trace, order, buffers);
  Placement out;
  out.offsets.assign(buffers.size(), -1);
  std::vector<int> used;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (lifetimes.used(static_cast<int>(i)) && buffers[i].purpose != kPersistent) used.push_back(static_cast<int>(i));
  }
  find_peak(lifetimes, buffers, used, out);

  // Conflicts by a sweep over first accesses: a buffer that is over before the newest one starts may share with it, but
  // must stay in the sweep while later buffers may still overlap it on another stream.
  std::vector<std::vector<int>> conflicts(buffers.size());
  std::vector<int> by_first = used;
  std::sort(by_first.begin(), by_first.end(),
            [&](int a, int b) { return lifetimes.first_item(a) < lifetimes.first_item(b); });
  std::vector<int> open;
  for (std::size_t i = 0; i < by_first.size(); ++i) {
    const int buffer = by_first[i];
    for (const int other : open) {
      if (lifetimes.disjoint(buffer, other)) continue;
      conflicts[static_cast<std::size_t>(buffer)].push_back(other);
      conflicts[static_cast<std::size_t>(other)].push_back(buffer);
    }
    open.push_back(buffer);
  }

  // Several orders, the best result: largest first; by first access; longest life first.
  const auto size = [&](int b) { return buffers[static_cast<std::size_t>(b)].bytes; };
  const auto life = [&](int b) { return lifetimes.last_item(b) - lifetimes.first_item(b); };
  const std::vector<std::function<bool(int, int)>> ranks = {
      [&](int a, int b) { return size(a) > size(b); },
      [&](int a, int b) { return life(a) > life(b); },
      [&](int a, int b) { return lifetimes.first_item(a) < lifetimes.first_item(b); },
      [&](int a, int b) {
        return static_cast<double>(size(a)) * life(a) > static_cast<double>(size(b)) * life(b);
      },
  };
  out.bytes = std::numeric_limits<std::int64_t>::max();
  std::vector<std::int64_t> offsets(buffers.size());
  for (const auto& rank : ranks) {
    std::vector<int> sorted = used;
    std::stable_sort(sorted.begin(), sorted.end(), rank);
    const std::int64_t bytes = put_down(sorted, conflicts, buffers, offsets);
    if (bytes < out.bytes) {
      out.bytes = bytes;
      for (const int b : used) out.offsets[static_cast<std::size_t>(b)] = offsets[static_cast<std::size_t>(b)];
    }
    if (out.bytes == out.live_bytes) break;
  }
  return out;
}

}  // namespace hawser::program
