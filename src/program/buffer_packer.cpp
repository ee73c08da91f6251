#include "program/buffer_packer.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

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

// Used buffers, in the order of their first accesses.
std::vector<int> by_first_access(const Lifetimes& lifetimes, std::vector<int> used) {
  std::stable_sort(used.begin(), used.end(),
                   [&](int a, int b) { return lifetimes.first_item(a) < lifetimes.first_item(b); });
  return used;
}

// By rank: the first rank after those that are first accessed before this one's last access.
std::vector<std::uint32_t> ends_of(const Trace& trace, const Lifetimes& lifetimes, const std::vector<int>& by_first) {
  std::vector<std::uint32_t> begun(trace.items.size(), 0);  // by item: buffers that are accessed up to it
  for (const int buffer : by_first) ++begun[static_cast<std::size_t>(lifetimes.first_item(buffer))];
  std::partial_sum(begun.begin(), begun.end(), begun.begin());
  std::vector<std::uint32_t> ends;
  ends.reserve(by_first.size());
  for (const int buffer : by_first) ends.push_back(begun[static_cast<std::size_t>(lifetimes.last_item(buffer))]);
  return ends;
}

}  // namespace

Packer::Packer(const Trace& trace, const Order& order, const Lifetimes& lifetimes, const std::vector<Buffer>& buffers,
               const std::vector<int>& used)
    : Packer(trace, order, lifetimes, buffers, by_first_access(lifetimes, used), Ranked()) {}

Packer::Packer(const Trace& trace, const Order& order, const Lifetimes& lifetimes, const std::vector<Buffer>& buffers,
               const std::vector<int>& by_first, Ranked)
    : rank_(buffers.size(), -1),
      occupied_(ends_of(trace, lifetimes, by_first)),
      unordered_of_(by_first.size()),
      conflicts_(by_first.size(), 0),
      offsets_(by_first.size(), -1),
      new_place_(by_first.size(), false),
      stale_(by_first.size(), false) {
  std::map<std::int64_t, std::size_t> sizes;
  for (std::size_t rank = 0; rank < by_first.size(); ++rank) {
    const auto buffer = static_cast<std::size_t>(by_first[rank]);
    rank_[buffer] = static_cast<int>(rank);
    units_.push_back(units_of(buffers[buffer]));
    size_of_.push_back(sizes.try_emplace(units_.back(), sizes.size()).first->second);
  }
  places_.resize(sizes.size());
  other_places_.resize(sizes.size());
  std::vector<int> by_end(by_first.size());  // ranks
  std::iota(by_end.begin(), by_end.end(), 0);
  const auto end_of = [&](int rank) { return occupied_.end_of(static_cast<std::size_t>(rank)); };
  std::stable_sort(by_end.begin(), by_end.end(), [&](int a, int b) { return end_of(a) < end_of(b); });
  // A sweep over first accesses. A buffer is open until its last access, then ended until the clocks of all remaining
  // accesses include its end.
  KnownFloor floor(trace, order);
  std::vector<int> ended;                      // ranks
  std::vector<std::pair<int, int>> unordered;  // ranks, the later one first
  std::size_t ends = 0, prune_at = 64;
  for (std::size_t rank = 0; rank < by_first.size(); ++rank) {
    const int buffer = by_first[rank];
    for (; ends < by_end.size() && end_of(by_end[ends]) <= rank; ++ends) ended.push_back(by_end[ends]);
    if (ended.size() >= prune_at) {
      const std::vector<int> known = floor.from(lifetimes.first_item(buffer));
      std::erase_if(ended, [&](int other) {
        for (int s = 0; s < order.streams(); ++s) {
          const int last = lifetimes.last_position(by_first[static_cast<std::size_t>(other)], s);
          if (last > known[static_cast<std::size_t>(s)]) return false;
        }
        return true;
      });
      prune_at = std::max<std::size_t>(64, ended.size() + ended.size() / 8);
    }
    for (const int other : ended) {
      if (lifetimes.before(by_first[static_cast<std::size_t>(other)], buffer)) continue;
      unordered.emplace_back(static_cast<int>(rank), other);
      ++conflicts_[rank];
      ++conflicts_[static_cast<std::size_t>(other)];
    }
  }
  std::size_t end = 0;
  for (std::size_t rank = 0; rank < by_first.size(); ++rank) {
    unordered_of_[rank] = {end, end};
    end += conflicts_[rank];
  }
  unordered_.resize(end);
  for (const auto& [a, b] : unordered) {
    unordered_[unordered_of_[static_cast<std::size_t>(a)].end++] = b;
    unordered_[unordered_of_[static_cast<std::size_t>(b)].end++] = a;
  }
  for (std::size_t rank = 0, begin = 0; rank < by_first.size(); ++rank) {
    while (begin < by_end.size() && end_of(by_end[begin]) <= rank) ++begin;  // this many have ended
    conflicts_[rank] += rank - begin + occupied_.end_of(rank) - rank - 1;
  }
}

namespace {

constexpr std::size_t kMaxPlaces = 64;

}  // namespace

void Packer::clear() {
  std::fill(offsets_.begin(), offsets_.end(), -1);
  std::fill(new_place_.begin(), new_place_.end(), false);
  std::fill(stale_.begin(), stale_.end(), false);
  std::fill(other_places_.begin(), other_places_.end(), false);
  for (auto& places : places_) places.clear();
  occupied_.clear();
}

std::int64_t Packer::fit(std::size_t buffer, bool reuse) {
  const Part& unordered = unordered_of_[buffer];
  occupied_.find(buffer, unordered_.data() + unordered.begin, unordered_.data() + unordered.end);
  const std::int64_t size = units_[buffer];
  if (!reuse) return occupied_.lowest_gap(size);
  for (const std::int64_t place : places_[size_of_[buffer]]) {
    if (occupied_.free({place, place + size})) return place;
  }
  const std::int64_t lowest = occupied_.lowest_gap(size);
  add_place(buffer, lowest);
  return lowest;
}

void Packer::add_place(std::size_t buffer, std::int64_t at) {
  auto& places = places_[size_of_[buffer]];
  new_place_[buffer] = true;
  if (places.size() < kMaxPlaces) places.insert(std::lower_bound(places.begin(), places.end(), at), at);
}

void Packer::differs(std::size_t buffer, bool offset) {
  other_places_[size_of_[buffer]] = true;
  if (!offset) return;
  occupied_.change(buffer);
  const Part& unordered = unordered_of_[buffer];
  for (std::size_t i = unordered.begin; i < unordered.end; ++i) stale_[static_cast<std::size_t>(unordered_[i])] = true;
}

std::int64_t Packer::put_down(const std::vector<int>& order, bool reuse, std::int64_t limit) {
  clear();
  last_order_ = order;
  last_reuse_ = reuse;
  // Buffers outside of [first, last) have the same buffers before them as in kept_.
  const bool similar = kept_.reuse == reuse && kept_.order.size() == order.size();
  std::size_t first = 0, last = order.size();
  while (similar && first < last && order[first] == kept_.order[first]) ++first;
  while (similar && last > first && order[last - 1] == kept_.order[last - 1]) --last;
  std::int64_t top = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    const auto b = static_cast<std::size_t>(rank_[static_cast<std::size_t>(order[i])]);
    std::int64_t at = 0;
    if (similar && (i < first || i >= last) && !stale_[b] && !occupied_.changed(b) &&
        !(reuse && other_places_[size_of_[b]])) {
      at = kept_.offsets[b];
      if (kept_.new_place[b]) add_place(b, at);
    } else {
      at = fit(b, reuse);
      const bool moved = similar && at != kept_.offsets[b];
      // Which places are left out once there are many depends on the order.
      const bool many = places_[size_of_[b]].size() == kMaxPlaces;
      if (similar && (moved || many || new_place_[b] != kept_.new_place[b])) differs(b, moved);
    }
    const std::int64_t end = at + units_[b];
    offsets_[b] = at;
    occupied_.add(b, {at, end});
    top = std::max(top, end);
    if (top > limit) break;
    work_ += conflicts_[b] + 2;
  }
  return top;
}

void Packer::keep() {
  std::swap(kept_.order, last_order_);
  kept_.reuse = last_reuse_;
  kept_.offsets = offsets_;
  kept_.new_place = new_place_;
}

}  // namespace hawser::program
