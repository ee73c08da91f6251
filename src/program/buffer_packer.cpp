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

}  // namespace

Packer::Packer(const Trace& trace, const Order& order, const Lifetimes& lifetimes, const std::vector<Buffer>& buffers,
               const std::vector<int>& used)
    : rank_(buffers.size(), -1),
      unordered_of_(used.size()),
      conflicts_(used.size(), 0),
      offsets_(used.size(), -1),
      slot_of_(used.size(), 0),
      new_place_(used.size(), false),
      stale_(used.size(), false) {
  std::vector<int> by_first = used;
  std::stable_sort(by_first.begin(), by_first.end(),
                   [&](int a, int b) { return lifetimes.first_item(a) < lifetimes.first_item(b); });
  std::map<std::int64_t, std::size_t> sizes;
  for (std::size_t rank = 0; rank < by_first.size(); ++rank) {
    const auto buffer = static_cast<std::size_t>(by_first[rank]);
    rank_[buffer] = static_cast<int>(rank);
    units_.push_back(units_of(buffers[buffer]));
    size_of_.push_back(sizes.try_emplace(units_.back(), sizes.size()).first->second);
    const auto after = std::upper_bound(by_first.begin(), by_first.end(), lifetimes.last_item(by_first[rank]),
                                        [&](int item, int other) { return item < lifetimes.first_item(other); });
    overlaps_.push_back(static_cast<std::uint32_t>(after - by_first.begin()));
  }
  places_.resize(sizes.size());
  other_places_.resize(sizes.size());
  std::vector<int> by_end(used.size());  // ranks
  std::iota(by_end.begin(), by_end.end(), 0);
  const auto end_of = [&](int rank) { return overlaps_[static_cast<std::size_t>(rank)]; };
  std::stable_sort(by_end.begin(), by_end.end(), [&](int a, int b) { return end_of(a) < end_of(b); });
  // A sweep over first accesses. A buffer is open until its last access, then ended until the clocks of all remaining
  // accesses include its end.
  KnownFloor floor(trace, order);
  std::vector<int> open, ended;                // ranks
  std::vector<std::pair<int, int>> unordered;  // ranks, the later one first
  std::size_t ends = 0, prune_at = 64;
  for (std::size_t rank = 0; rank < by_first.size(); ++rank) {
    const int buffer = by_first[rank];
    for (; ends < by_end.size() && end_of(by_end[ends]) <= rank; ++ends) ended.push_back(by_end[ends]);
    if (rank % kBlock == 0) {
      std::erase_if(open, [&](int other) { return end_of(other) <= rank; });
      open_of_.push_back({open_.size(), open_.size() + open.size()});
      open_.insert(open_.end(), open.begin(), open.end());
    }
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
    open.push_back(static_cast<int>(rank));
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
    conflicts_[rank] += rank - begin + overlaps_[rank] - rank - 1;
  }
}

namespace {

constexpr std::size_t kMaxPlaces = 64;

}  // namespace

void Packer::clear() {
  std::fill(offsets_.begin(), offsets_.end(), -1);
  std::fill(slot_of_.begin(), slot_of_.end(), 0);
  std::fill(new_place_.begin(), new_place_.end(), false);
  std::fill(stale_.begin(), stale_.end(), false);
  std::fill(other_places_.begin(), other_places_.end(), false);
  for (auto& places : places_) places.clear();
  slots_.clear();
  marks_.assign(1, 0);
  mark_ = 0;
}

template <class Visit>
void Packer::conflicts_of(std::size_t buffer, const Visit& visit) const {
  // Locals: the visits' writes could change members, as far as the compiler knows.
  const Range &open = open_of_[buffer / kBlock], &unordered = unordered_of_[buffer];
  const std::uint32_t* const overlaps = overlaps_.data();
  const std::size_t end = overlaps[buffer];
  const int* const last_open = open_.data() + open.end;
  for (const int* other = open_.data() + open.begin; other != last_open; ++other) {
    visit(static_cast<std::size_t>(*other), overlaps[*other] > buffer);
  }
  for (std::size_t other = buffer - buffer % kBlock; other < buffer; ++other) visit(other, overlaps[other] > buffer);
  for (std::size_t other = buffer + 1; other < end; ++other) visit(other, true);
  const int* const last_unordered = unordered_.data() + unordered.end;
  for (const int* other = unordered_.data() + unordered.begin; other != last_unordered; ++other) {
    visit(static_cast<std::size_t>(*other), true);
  }
}

void Packer::mark_slots(std::size_t buffer) {
  // Locals: the writes could change members, as far as the compiler knows.
  const std::uint32_t mark = ++mark_;
  std::uint32_t* const marks = marks_.data();
  const std::uint32_t* const slot_of = slot_of_.data();
  // No buffer is in slot 0.
  conflicts_of(buffer, [=](std::size_t other, bool conflict) {
    marks[slot_of[other] & (0U - static_cast<std::uint32_t>(conflict))] = mark;
  });
  taken_.clear();
  next_slot_ = 0;
}

void Packer::extend_taken(std::int64_t end) {
  for (; next_slot_ < slots_.size() && slots_[next_slot_].begin < end; ++next_slot_) {
    const Slot& slot = slots_[next_slot_];
    if (marks_[slot.number] != mark_) continue;
    if (taken_.empty() || slot.begin > taken_.back().second) {
      taken_.emplace_back(slot.begin, slot.end);
    } else {
      taken_.back().second = std::max(taken_.back().second, slot.end);
    }
  }
}

std::int64_t Packer::lowest_gap(std::int64_t size) const {
  std::int64_t lowest = 0;
  for (const Slot& slot : slots_) {
    if (lowest + size <= slot.begin) break;
    if (marks_[slot.number] == mark_) lowest = std::max(lowest, slot.end);
  }
  return lowest;
}

std::int64_t Packer::fit(std::size_t buffer, bool reuse) {
  const std::int64_t size = units_[buffer];
  if (!reuse) return lowest_gap(size);
  for (const std::int64_t place : places_[size_of_[buffer]]) {
    extend_taken(place + size);
    const bool free = std::none_of(taken_.begin(), taken_.end(),
                                   [&](const Run& run) { return run.first < place + size && place < run.second; });
    if (free) return place;
  }
  const std::int64_t lowest = lowest_gap(size);
  add_place(buffer, lowest);
  return lowest;
}

void Packer::add_place(std::size_t buffer, std::int64_t at) {
  auto& places = places_[size_of_[buffer]];
  new_place_[buffer] = true;
  if (places.size() < kMaxPlaces) places.insert(std::lower_bound(places.begin(), places.end(), at), at);
}

std::uint32_t Packer::slot(std::int64_t begin, std::int64_t end) {
  const auto at = std::lower_bound(slots_.begin(), slots_.end(), Run(begin, end),
                                   [](const Slot& a, const Run& b) { return Run(a.begin, a.end) < b; });
  if (at != slots_.end() && at->begin == begin && at->end == end) return at->number;
  const auto number = static_cast<std::uint32_t>(marks_.size());
  marks_.push_back(0);
  slots_.insert(at, {begin, end, number});
  return number;
}

void Packer::differs(std::size_t buffer, bool offset) {
  other_places_[size_of_[buffer]] = true;
  if (!offset) return;
  char* const stale = stale_.data();
  conflicts_of(buffer, [=](std::size_t other, bool conflict) { stale[other] |= static_cast<char>(conflict); });
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
    if (similar && (i < first || i >= last) && !stale_[b] && !(reuse && other_places_[size_of_[b]])) {
      at = kept_.offsets[b];
      if (kept_.new_place[b]) add_place(b, at);
    } else {
      mark_slots(b);
      at = fit(b, reuse);
      const bool moved = similar && at != kept_.offsets[b];
      // Which places are left out once there are many depends on the order.
      const bool many = places_[size_of_[b]].size() == kMaxPlaces;
      if (similar && (moved || many || new_place_[b] != kept_.new_place[b])) differs(b, moved);
    }
    const std::int64_t end = at + units_[b];
    offsets_[b] = at;
    slot_of_[b] = slot(at, end);
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
