#include "program/buffer_packer.h"

#include <algorithm>
#include <limits>

#include "base/units.h"
#include "device/device.h"

namespace hawser::program {

std::int64_t units_of(const Buffer& buffer) {
  return ceil_div(buffer.bytes, Device::kAlignment);
}

namespace {

// A lower bound of the clocks of all accesses from an item on: the minimum over the streams' next accesses.
class KnownFloor {
 public:
  KnownFloor(const Trace& trace, const Order& order) : order_(order), next_(static_cast<std::size_t>(order.streams())) {
    for (std::size_t i = trace.items.size(); i-- > 0;) {
      if (!trace.items[i].record.accesses.empty()) {
        next_[static_cast<std::size_t>(trace.items[i].stream)].push_back(static_cast<int>(i));
      }
    }
  }
  // `item` must not decrease from call to call.
  std::vector<int> from(int item) {
    std::vector<int> floor(next_.size(), std::numeric_limits<int>::max());
    for (auto& items : next_) {
      while (!items.empty() && items.back() < item) items.pop_back();
      if (items.empty()) continue;
      for (std::size_t s = 0; s < floor.size(); ++s) {
        floor[s] = std::min(floor[s], order_.clock(items.back(), static_cast<int>(s)));
      }
    }
    return floor;
  }

 private:
  const Order& order_;
  std::vector<std::vector<int>> next_;  // remaining items with accesses, the next one last
};

}  // namespace

Packer::Packer(const Trace& trace, const Order& order, const Lifetimes& lifetimes, const std::vector<Buffer>& buffers,
               const std::vector<int>& used)
    : earlier_(buffers.size()), later_(buffers.size()), offsets_(buffers.size(), -1), taken_(buffers.size()) {
  for (const Buffer& buffer : buffers) units_.push_back(units_of(buffer));
  // A sweep over first accesses. A buffer leaves it when the clocks of all remaining accesses include its end.
  KnownFloor floor(trace, order);
  std::vector<int> by_first = used, open;
  std::stable_sort(by_first.begin(), by_first.end(),
                   [&](int a, int b) { return lifetimes.first_item(a) < lifetimes.first_item(b); });
  std::vector<std::size_t> later(buffers.size(), 0);
  std::size_t prune_at = 64;
  for (const int buffer : by_first) {
    if (open.size() >= prune_at) {
      const std::vector<int> known = floor.from(lifetimes.first_item(buffer));
      std::erase_if(open, [&](int other) {
        for (int s = 0; s < order.streams(); ++s) {
          if (lifetimes.last_position(other, s) > known[static_cast<std::size_t>(s)]) return false;
        }
        return true;
      });
      prune_at = std::max<std::size_t>(64, open.size() + open.size() / 8);
    }
    Range& range = earlier_[static_cast<std::size_t>(buffer)];
    range.begin = conflicts_.size();
    for (const int other : open) {
      if (lifetimes.before(other, buffer)) continue;
      conflicts_.push_back(other);
      ++later[static_cast<std::size_t>(other)];
    }
    range.end = conflicts_.size();
    open.push_back(buffer);
  }
  std::size_t end = conflicts_.size();
  for (const int buffer : by_first) {
    const auto b = static_cast<std::size_t>(buffer);
    later_[b] = {end, end};
    end += later[b];
  }
  conflicts_.resize(end);
  for (const int buffer : by_first) {
    const Range& range = earlier_[static_cast<std::size_t>(buffer)];
    for (std::size_t i = range.begin; i < range.end; ++i) {
      conflicts_[later_[static_cast<std::size_t>(conflicts_[i])].end++] = buffer;
    }
  }
}

void Packer::take(Runs& runs, std::int64_t begin, std::int64_t end) {
  auto first = std::lower_bound(runs.begin(), runs.end(), begin,
                                [](const auto& run, std::int64_t at) { return run.second < at; });
  auto last = first;
  for (; last != runs.end() && last->first <= end; ++last) {
    begin = std::min(begin, last->first);
    end = std::max(end, last->second);
  }
  if (first == last) {
    runs.emplace(first, begin, end);
  } else {
    *first = {begin, end};
    runs.erase(first + 1, last);
  }
}

std::int64_t Packer::fit(std::size_t buffer, bool reuse) {
  const Runs& taken = taken_[buffer];
  const std::int64_t size = units_[buffer];
  std::int64_t lowest = 0;
  for (const auto& [begin, end] : taken) {
    if (lowest + size <= begin) break;
    lowest = end;
  }
  if (!reuse) return lowest;
  constexpr std::size_t kMaxPlaces = 64;
  auto& places = places_[size];
  for (const std::int64_t place : places) {
    const bool free = std::none_of(taken.begin(), taken.end(),
                                   [&](const auto& run) { return run.first < place + size && place < run.second; });
    if (free) return place;
  }
  if (places.size() < kMaxPlaces) places.insert(std::lower_bound(places.begin(), places.end(), lowest), lowest);
  return lowest;
}

std::int64_t Packer::put_down(const std::vector<int>& order, bool reuse, std::int64_t limit) {
  std::fill(offsets_.begin(), offsets_.end(), -1);
  for (auto& runs : taken_) runs.clear();
  places_.clear();
  std::int64_t top = 0;
  for (const int buffer : order) {
    const auto b = static_cast<std::size_t>(buffer);
    const std::int64_t at = fit(b, reuse), end = at + units_[b];
    offsets_[b] = at;
    top = std::max(top, end);
    if (top > limit) break;
    for (const Range& range : {earlier_[b], later_[b]}) {
      work_ += range.end - range.begin + 1;
      for (std::size_t i = range.begin; i < range.end; ++i) {
        const auto other = static_cast<std::size_t>(conflicts_[i]);
        if (offsets_[other] < 0) take(taken_[other], at, end);
      }
    }
  }
  return top;
}

}  // namespace hawser::program
