#include "program/placement.h"

#include <algorithm>
#include <limits>
#include <queue>

#include "base/error.h"
#include "base/units.h"
#include "device/device.h"

namespace hawser::program {

namespace {

// Sizes and offsets are counted in units of the alignment here.
std::int64_t units(const Buffer& buffer) { return ceil_div(buffer.bytes, Device::kAlignment); }

// A run of the trace that the relation allows: `eager` goes as far ahead of the other streams as its waits let it.
// Returns item indices in the order in which they start.
std::vector<int> run_ahead(const Trace& trace, int eager) {
  const std::size_t count = trace.items.size();
  std::vector<int> out;
  out.reserve(count);
  std::vector<bool> done(count, false);
  std::vector<int> ahead;
  for (std::size_t i = 0; i < count; ++i) {
    if (trace.items[i].stream == eager) ahead.push_back(static_cast<int>(i));
  }
  std::size_t next = 0;
  const auto start = [&](int item) {
    done[static_cast<std::size_t>(item)] = true;
    out.push_back(item);
  };
  for (std::size_t i = 0; i < count; ++i) {
    while (next < ahead.size()) {
      const TraceItem& item = trace.items[static_cast<std::size_t>(ahead[next])];
      if (item.kind == TraceItem::Kind::wait && !done[static_cast<std::size_t>(item.target)]) break;
      start(ahead[next++]);
    }
    if (!done[i]) start(static_cast<int>(i));
  }
  return out;
}

// Buffers live at one moment of one run: those that have been accessed and are not known to be over by the accesses so
// far. No two of them are disjoint, so their sum is a bound from below on every placement. A buffer waits in the heap
// of one stream on which its last access is not known to be over.
class LiveSet {
 public:
  LiveSet(const Lifetimes& lifetimes, const std::vector<Buffer>& buffers, int streams)
      : lifetimes_(lifetimes), buffers_(buffers), heaps_(static_cast<std::size_t>(streams)) {}

  void add(int buffer) {
    for (std::size_t s = 0; s < heaps_.size(); ++s) {
      while (!heaps_[s].empty() && heaps_[s].top().first <= lifetimes_.known_over(buffer, static_cast<int>(s))) {
        const int other = heaps_[s].top().second;
        heaps_[s].pop();
        if (!put(other, buffer)) units_ -= units(buffers_[static_cast<std::size_t>(other)]);
      }
    }
    put(buffer, buffer);
    units_ += units(buffers_[static_cast<std::size_t>(buffer)]);
  }
  std::int64_t units_live() const { return units_; }
  std::vector<int> take() {
    std::vector<int> out;
    for (auto& heap : heaps_) {
      for (; !heap.empty(); heap.pop()) out.push_back(heap.top().second);
    }
    return out;
  }

 private:
  using Entry = std::pair<int, int>;  // last position on the heap's stream, buffer

  // Into a heap whose stream shows that the buffer is not over before `newest`; false where it is over.
  bool put(int buffer, int newest) {
    for (std::size_t s = 0; s < heaps_.size(); ++s) {
      const int last = lifetimes_.last_position(buffer, static_cast<int>(s));
      if (last > lifetimes_.known_over(newest, static_cast<int>(s))) {
        heaps_[s].emplace(last, buffer);
        return true;
      }
    }
    return false;
  }

  const Lifetimes& lifetimes_;
  const std::vector<Buffer>& buffers_;
  std::vector<std::priority_queue<Entry, std::vector<Entry>, std::greater<>>> heaps_;
  std::int64_t units_ = 0;
};

// The largest live set over several runs: the host's order, and each stream running ahead (a gather may come long
// before the host's order says).
void find_peak(const Trace& trace, const Lifetimes& lifetimes, const std::vector<Buffer>& buffers,
               const std::vector<int>& used, Placement& out) {
  const int streams = static_cast<int>(trace.streams.size());
  const BufferIndex index(buffers);
  std::vector<bool> wanted(buffers.size(), false);
  for (const int b : used) wanted[static_cast<std::size_t>(b)] = true;
  std::vector<std::vector<int>> touched(trace.items.size());
  for (std::size_t i = 0; i < trace.items.size(); ++i) {
    for (const Access& access : trace.items[i].booking.accesses) {
      const int b = index.find(access.address);
      if (b >= 0 && wanted[static_cast<std::size_t>(b)]) touched[i].push_back(b);
    }
  }
  for (int eager = -1; eager < streams; ++eager) {
    std::vector<int> by_first;
    std::vector<bool> seen(buffers.size(), false);
    for (const int item : run_ahead(trace, eager)) {
      for (const int b : touched[static_cast<std::size_t>(item)]) {
        if (!seen[static_cast<std::size_t>(b)]) by_first.push_back(b);
        seen[static_cast<std::size_t>(b)] = true;
      }
    }
    LiveSet live(lifetimes, buffers, streams);
    std::size_t peak = by_first.size();
    for (std::size_t i = 0; i < by_first.size(); ++i) {
      live.add(by_first[i]);
      if (live.units_live() * Device::kAlignment <= out.live_bytes) continue;
      out.live_bytes = live.units_live() * Device::kAlignment;
      peak = i;
    }
    if (peak == by_first.size()) continue;
    LiveSet again(lifetimes, buffers, streams);
    for (std::size_t i = 0; i <= peak; ++i) again.add(by_first[i]);
    out.peak_item = lifetimes.first_item(by_first[peak]);
    out.peak_buffers = again.take();
  }
  std::sort(out.peak_buffers.begin(), out.peak_buffers.end(), [&](int a, int b) {
    const std::int64_t x = buffers[static_cast<std::size_t>(a)].bytes, y = buffers[static_cast<std::size_t>(b)].bytes;
    return x != y ? x > y : a < b;
  });
}

// What every access from an item on knows to be over, at the least: the smallest clock of the streams' next accesses.
class KnownFloor {
 public:
  KnownFloor(const Trace& trace, const Order& order) : order_(order), next_(static_cast<std::size_t>(order.streams())) {
    for (std::size_t i = trace.items.size(); i-- > 0;) {
      if (!trace.items[i].booking.accesses.empty()) {
        next_[static_cast<std::size_t>(trace.items[i].stream)].push_back(static_cast<int>(i));
      }
    }
  }
  // `item` must not fall from call to call.
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
  std::vector<std::vector<int>> next_;  // items with accesses that are still to come, the next one last
};

// Who may not share bytes with whom, and first-fit under it.
class Packer {
 public:
  Packer(const Trace& trace, const Order& order, const Lifetimes& lifetimes, const std::vector<Buffer>& buffers,
         const std::vector<int>& used)
      : earlier_(buffers.size()), later_(buffers.size()), offsets_(buffers.size(), -1), taken_(buffers.size()) {
    for (const Buffer& buffer : buffers) {
      units_.push_back(units(buffer));
    }
    // A sweep over first accesses. A buffer leaves it when all accesses to come know that it is over.
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

  // Puts buffers down in the given order, each at the lowest offset that is free of all it may not share with. Returns
  // the units taken.
  std::int64_t put_down(const std::vector<int>& order) {
    std::fill(offsets_.begin(), offsets_.end(), -1);
    for (auto& runs : taken_) runs.clear();
    std::int64_t top = 0;
    for (const int buffer : order) {
      const auto b = static_cast<std::size_t>(buffer);
      std::int64_t at = 0;
      for (const auto& [begin, end] : taken_[b]) {
        if (at + units_[b] <= begin) break;
        at = end;
      }
      offsets_[b] = at;
      top = std::max(top, at + units_[b]);
      for (const Range& range : {earlier_[b], later_[b]}) {
        for (std::size_t i = range.begin; i < range.end; ++i) {
          const auto other = static_cast<std::size_t>(conflicts_[i]);
          if (offsets_[other] < 0) take(taken_[other], at, at + units_[b]);
        }
      }
    }
    return top;
  }
  std::int64_t offset(int buffer) const { return offsets_[static_cast<std::size_t>(buffer)]; }
  std::int64_t end(int buffer) const { return offset(buffer) + units_[static_cast<std::size_t>(buffer)]; }
  std::size_t work() const { return conflicts_.size(); }  // of one put_down()

 private:
  struct Range {
    std::size_t begin = 0, end = 0;
  };
  using Runs = std::vector<std::pair<std::int64_t, std::int64_t>>;  // ascending, none touching the next: mostly one

  static void take(Runs& runs, std::int64_t begin, std::int64_t end) {
    auto first = runs.begin();
    while (first != runs.end() && first->second < begin) ++first;
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

  std::vector<std::int64_t> units_;
  std::vector<int> conflicts_;
  std::vector<Range> earlier_, later_;  // a buffer's conflicts: with those first accessed before it, and behind it
  std::vector<std::int64_t> offsets_;
  std::vector<Runs> taken_;  // what conflicts that lie already keep from a buffer
};

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
  if (used.empty()) return out;
  find_peak(trace, lifetimes, buffers, used, out);

  Packer packer(trace, order, lifetimes, buffers, used);
  const std::int64_t bound = out.live_bytes / Device::kAlignment;
  // The search ends when the result is as good as it needs to be, or has cost enough.
  const std::int64_t good = bound + bound / 200;
  constexpr std::size_t kMostAttempts = 24, kMostWork = 60'000'000;
  std::size_t attempts = std::clamp<std::size_t>(kMostWork / (packer.work() + used.size()), 3, kMostAttempts);
  std::int64_t best = std::numeric_limits<std::int64_t>::max();
  std::vector<int> best_order;
  const auto attempt = [&](const std::vector<int>& sorted) {
    const std::int64_t top = packer.put_down(sorted);
    if (top < best) {
      best = top;
      best_order = sorted;
      for (const int b : used) out.offsets[static_cast<std::size_t>(b)] = packer.offset(b) * Device::kAlignment;
    }
    return --attempts == 0 || best <= good;
  };

  const auto size = [&](int b) { return buffers[static_cast<std::size_t>(b)].bytes; };
  const auto life = [&](int b) { return lifetimes.last_item(b) - lifetimes.first_item(b); };
  const auto area = [&](int b) { return static_cast<double>(size(b)) * (life(b) + 1); };
  std::vector<std::vector<int>> orders(3, used);
  std::stable_sort(orders[0].begin(), orders[0].end(), [&](int a, int b) { return size(a) > size(b); });
  std::stable_sort(orders[1].begin(), orders[1].end(), [&](int a, int b) { return area(a) > area(b); });
  std::stable_sort(orders[2].begin(), orders[2].end(), [&](int a, int b) { return life(a) > life(b); });
  // What is live at the peak must lie without gaps: it goes first.
  std::vector<bool> at_peak(buffers.size(), false);
  for (const int b : out.peak_buffers) at_peak[static_cast<std::size_t>(b)] = true;
  bool done = false;
  for (auto& sorted : orders) {
    std::stable_partition(sorted.begin(), sorted.end(), [&](int b) { return at_peak[static_cast<std::size_t>(b)]; });
    if ((done = attempt(sorted))) break;
  }
  // Then again and again from the best order, with what stuck out put down earlier.
  std::vector<int> sorted = best_order;
  if (!done) packer.put_down(sorted);
  while (!done) {
    const std::vector<int> before = sorted;
    std::stable_partition(sorted.begin(), sorted.end(), [&](int b) { return packer.end(b) > bound; });
    if (sorted == before) break;
    done = attempt(sorted);
  }
  out.bytes = best * Device::kAlignment;
  return out;
}

}  // namespace hawser::program
