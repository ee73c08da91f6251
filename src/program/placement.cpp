#include "program/placement.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <queue>

#include "base/philox.h"
#include "device/device.h"
#include "program/buffer_packer.h"
#include "program/repetition.h"

namespace hawser::program {

namespace {

// What execution orders depend on, of each item.
struct Starts {
  explicit Starts(const Trace& trace) {
    stream.reserve(trace.items.size());
    target.reserve(trace.items.size());
    for (const TraceItem& item : trace.items) {
      stream.push_back(item.stream);
      target.push_back(item.kind == TraceItem::Kind::wait ? item.target : -1);
    }
  }
  std::vector<int> stream, target;  // target: the item that a wait waits for, or -1
};

// An execution order of the trace that the happens-before relation allows: `eager` runs as far ahead of the other
// streams as its waits allow. Returns item indices in the order in which they start.
std::vector<int> run_ahead(const Starts& starts, int eager) {
  const std::size_t count = starts.stream.size();
  std::vector<int> out;
  out.reserve(count);
  std::vector<char> done(count, 0);
  std::vector<int> ahead;
  for (std::size_t i = 0; i < count; ++i) {
    if (starts.stream[i] == eager) ahead.push_back(static_cast<int>(i));
  }
  std::size_t next = 0;
  const auto start = [&](int item) {
    done[static_cast<std::size_t>(item)] = 1;
    out.push_back(item);
  };
  for (std::size_t i = 0; i < count; ++i) {
    while (next < ahead.size()) {
      const int target = starts.target[static_cast<std::size_t>(ahead[next])];
      if (target >= 0 && !done[static_cast<std::size_t>(target)]) break;
      start(ahead[next++]);
    }
    if (!done[i]) start(static_cast<int>(i));
  }
  return out;
}

// The buffers live at one moment of one execution order: those that have been accessed, and whose accesses are not all
// known to have completed before the newest buffer's accesses start. No two of them have disjoint lifetimes, so the sum
// of their sizes is a lower bound of every placement. Each buffer is in the heap of one stream on which its last access
// is not known to have completed.
class LiveSet {
 public:
  LiveSet(const Lifetimes& lifetimes, const std::vector<Buffer>& buffers, int streams)
      : lifetimes_(lifetimes), buffers_(buffers), heaps_(static_cast<std::size_t>(streams)) {}

  void add(int buffer) {
    for (std::size_t s = 0; s < heaps_.size(); ++s) {
      while (!heaps_[s].empty() && heaps_[s].top().first <= lifetimes_.completed_before(buffer, static_cast<int>(s))) {
        const int other = heaps_[s].top().second;
        heaps_[s].pop();
        if (!put(other, buffer)) units_ -= units_of(buffers_[static_cast<std::size_t>(other)]);
      }
    }
    put(buffer, buffer);
    units_ += units_of(buffers_[static_cast<std::size_t>(buffer)]);
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

  // Puts the buffer into the heap of a stream on which its last access has not completed before `newest` starts; false
  // if there is no such stream.
  bool put(int buffer, int newest) {
    for (std::size_t s = 0; s < heaps_.size(); ++s) {
      const int last = lifetimes_.last_position(buffer, static_cast<int>(s));
      if (last > lifetimes_.completed_before(newest, static_cast<int>(s))) {
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

// The largest live set over several execution orders: the host's order, and each stream running ahead (a gather may run
// long before its position in the host's order).
void find_peak(const Trace& trace, const Lifetimes& lifetimes, const std::vector<Buffer>& buffers,
               const std::vector<int>& used, Placement& out) {
  const int streams = static_cast<int>(trace.streams.size());
  std::vector<char> wanted(buffers.size(), 0);
  for (const int b : used) wanted[static_cast<std::size_t>(b)] = 1;
  std::vector<int> by_size = used;
  std::stable_sort(by_size.begin(), by_size.end(), [&](int a, int b) {
    return buffers[static_cast<std::size_t>(a)].bytes > buffers[static_cast<std::size_t>(b)].bytes;
  });
  const Starts starts(trace);
  std::vector<std::vector<int>> tried;  // orders of first accesses
  for (int eager = -1; eager < streams; ++eager) {
    std::vector<int> order;
    std::vector<char> unseen = wanted;
    for (const int item : run_ahead(starts, eager)) {
      for (const int b : lifetimes.accessed(item)) {
        if (unseen[static_cast<std::size_t>(b)]) order.push_back(b);
        unseen[static_cast<std::size_t>(b)] = 0;
      }
    }
    if (std::ranges::find(tried, order) != tried.end()) continue;
    const std::vector<int>& by_first = tried.emplace_back(std::move(order));
    LiveSet live(lifetimes, buffers, streams);
    std::size_t peak = 0;
    std::int64_t max = -1;
    for (std::size_t i = 0; i < by_first.size(); ++i) {
      live.add(by_first[i]);
      if (live.units_live() <= max) continue;
      max = live.units_live();
      peak = i;
    }
    LiveSet again(lifetimes, buffers, streams);
    for (std::size_t i = 0; i <= peak; ++i) again.add(by_first[i]);
    std::vector<int> set = again.take();
    // Adds buffers that are live at that moment in other execution orders, such as those of a running reduction or an
    // early gather.
    for (const int b : by_size) {
      const auto rejects =
          std::ranges::find_if(set, [&](int other) { return other == b || lifetimes.disjoint(b, other); });
      if (rejects != set.end()) {
        std::iter_swap(rejects, set.begin());  // it probably rejects the next buffer, too
        continue;
      }
      set.push_back(b);
      max += units_of(buffers[static_cast<std::size_t>(b)]);
    }
    if (max * Device::kAlignment <= out.live_bytes) continue;
    out.live_bytes = max * Device::kAlignment;
    out.peak_item = lifetimes.first_item(by_first[peak]);
    out.peak_buffers = std::move(set);
  }
  std::sort(out.peak_buffers.begin(), out.peak_buffers.end(), [&](int a, int b) {
    const std::int64_t x = buffers[static_cast<std::size_t>(a)].bytes, y = buffers[static_cast<std::size_t>(b)].bytes;
    return x != y ? x > y : a < b;
  });
}

// Searches for an order of placing buffers that needs few bytes. Initially buffers of one size are adjacent, in
// descending order of size: in most traces that is within a percent of the bound, which is good enough, or within a
// few KB, which is for small models. Otherwise (weights of two sizes that alternate over several micro-batches) buffers
// of the largest sizes are placed together, in the order of their accesses or against it, for several numbers of sizes.
// If that is not enough, the order by size is changed at random, step by step, and kept if the result is no worse.
class Search {
 public:
  Search(const Lifetimes& lifetimes, const std::vector<Buffer>& buffers, const std::vector<int>& used, Packer& packer,
         std::int64_t bound, std::size_t divisor)
      : lifetimes_(lifetimes),
        packer_(packer),
        divisor_(divisor),
        good_(bound + std::max(bound / 100, kNegligible / Device::kAlignment)),
        poor_(std::max(good_, bound + bound * 3 / 100)),
        random_(1, "place") {
    std::map<std::int64_t, std::vector<int>, std::greater<>> sizes;
    for (const int b : used) sizes[units_of(buffers[static_cast<std::size_t>(b)])].push_back(b);
    for (auto& [size, group] : sizes) {
      sort(group, 0);
      groups_.push_back(std::move(group));
    }
  }

  std::int64_t run(std::vector<std::int64_t>& offsets) {
    constexpr int kMaxTries = 2000;
    constexpr std::size_t kMaxWork = 80'000'000, kPoorWork = 320'000'000;  // tenths of a second; about a second
    // Places in the order of `groups`; keeps them in `state` if the result is no worse.
    const auto attempt = [&](State& state, std::vector<std::vector<int>> groups, bool reuse) {
      std::vector<int> order;
      for (const auto& group : groups) order.insert(order.end(), group.begin(), group.end());
      const std::int64_t units = packer_.put_down(order, reuse, state.units);
      if (units > state.units) return;
      packer_.keep();
      state = {std::move(groups), reuse, units};
      if (units >= best_) return;
      best_ = units;
      for (const int b : order) offsets[static_cast<std::size_t>(b)] = packer_.offset(b) * Device::kAlignment;
    };
    State state;
    for (const bool reuse : {true, false}) {
      if (best_ > good_) attempt(state, groups_, reuse);
    }
    const std::size_t work = packer_.work();
    State merged = state;
    for (std::size_t sizes = 1; best_ > good_ && sizes <= std::min<std::size_t>(groups_.size(), kMaxMerged); ++sizes) {
      for (const std::size_t how : {1, 0}) {
        const std::vector<std::vector<int>> groups = merge_largest(groups_, sizes, how);
        for (const bool reuse : {true, false}) {
          if (best_ > good_) attempt(merged, groups, reuse);
        }
      }
    }
    // Starts from the order by size, not from the best one: so it finds what it would find without merged sizes.
    const std::size_t start = packer_.work() - work;
    const auto resume = [&] {
      return best_ > good_ && (packer_.work() - start) * divisor_ < (state.units > poor_ ? kPoorWork : kMaxWork);
    };
    for (int i = 2; i < kMaxTries && resume(); ++i) {
      std::vector<std::vector<int>> groups = state.groups;
      const bool other = below(8) == 0;
      if (!other) change(groups);
      attempt(state, std::move(groups), state.reuse != other);
    }
    return best_ * Device::kAlignment;
  }

 private:
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  struct State {
    std::vector<std::vector<int>> groups;
    bool reuse = true;
    std::int64_t units = kNone;
  };

  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_.below(bound, drawn_++)); }

  void sort(std::vector<int>& group, std::size_t how) const {
    const auto life = [&](int b) { return lifetimes_.last_item(b) - lifetimes_.first_item(b); };
    std::stable_sort(group.begin(), group.end(), [&](int a, int b) {
      if (how == 0) return lifetimes_.first_item(a) < lifetimes_.first_item(b);
      if (how == 1) return lifetimes_.last_item(a) > lifetimes_.last_item(b);
      return life(a) > life(b);
    });
  }

  // The groups with the first `count` merged to one.
  std::vector<std::vector<int>> merge_largest(std::vector<std::vector<int>> groups, std::size_t count,
                                              std::size_t how) const {
    for (std::size_t i = 1; i < count; ++i) groups[0].insert(groups[0].end(), groups[i].begin(), groups[i].end());
    groups.erase(groups.begin() + 1, groups.begin() + static_cast<std::ptrdiff_t>(count));
    sort(groups[0], how);
    return groups;
  }

  void change(std::vector<std::vector<int>>& groups) {
    // Small buffers fit into gaps anyway: change only the largest sizes.
    const std::size_t count = std::min<std::size_t>(groups.size(), 16), i = below(count), j = below(count);
    switch (below(4)) {
      case 0: {  // move a group
        std::vector<int> group = std::move(groups[i]);
        groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(i));
        groups.insert(groups.begin() + static_cast<std::ptrdiff_t>(j), std::move(group));
        break;
      }
      case 1:  // sort a group differently
        sort(groups[i], below(3));
        break;
      case 2:  // merge two groups
        if (i == j) break;
        groups[i].insert(groups[i].end(), groups[j].begin(), groups[j].end());
        groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(j));
        sort(groups[i > j ? i - 1 : i], below(3));
        break;
      default: {  // buffers that start after some moment first
        const int moment = lifetimes_.first_item(groups[i][below(groups[i].size())]);
        std::stable_partition(groups[i].begin(), groups[i].end(),
                              [&](int b) { return lifetimes_.first_item(b) >= moment; });
      }
    }
  }

  const Lifetimes& lifetimes_;
  Packer& packer_;
  std::size_t divisor_;
  static constexpr std::size_t kMaxMerged = 8;
  static constexpr std::int64_t kNegligible = std::int64_t{32} << 10;  // bytes that no search is worth
  std::int64_t good_, poor_;  // units: the search ends at good_ or below; above poor_ it may take longer
  RandomStream random_;
  std::uint64_t drawn_ = 0;
  std::vector<std::vector<int>> groups_;  // by size
  std::int64_t best_ = kNone;
};

// place(), with a search that does 1 / `divisor` of the usual work.
Placement place_with(const Trace& trace, const std::vector<Buffer>& buffers, Placing placing, std::int64_t max_bytes,
                     Space space, std::size_t divisor);

// The placement of the short trace, repeated in the complete one; none if that has no repetition, or if accesses of the
// complete trace contradict the placement.
std::optional<Placement> place_repeated(const Trace& trace, const Lifetimes& lifetimes,
                                        const std::vector<Buffer>& buffers, const std::vector<int>& used,
                                        std::int64_t max_bytes, Space space, std::size_t divisor) {
  const std::optional<ShortTrace> shorter = ShortTrace::make(trace, lifetimes, buffers);
  if (!shorter) return std::nullopt;
  const std::size_t repeats = trace.items.size() / shorter->trace().items.size();
  Placement out = place_with(shorter->trace(), buffers, Placing::offsets, max_bytes, space,
                             divisor * std::max<std::size_t>(repeats, 1));
  for (const int a : out.peak_buffers) {
    for (const int b : out.peak_buffers) {
      if (a < b && lifetimes.disjoint(a, b)) return std::nullopt;
    }
  }
  if (out.peak_item >= 0) out.peak_item = shorter->item(out.peak_item);
  if (!out.placed) return out;
  for (std::size_t tile = 1; tile <= kMaxTile; ++tile) {
    if (shorter->repeat_offsets(out.offsets, tile, space) && shares_in_order(lifetimes, buffers, out.offsets, used)) {
      return out;
    }
  }
  return std::nullopt;
}

Placement place_with(const Trace& trace, const std::vector<Buffer>& buffers, Placing placing, std::int64_t max_bytes,
                     Space space, std::size_t divisor) {
  Placement out;
  out.offsets.assign(buffers.size(), -1);
  out.placed = placing == Placing::offsets;
  if (std::ranges::find(buffers, space, &Buffer::space) == buffers.end()) return out;
  const Order order(trace);
  const Lifetimes lifetimes(trace, order, buffers);
  std::vector<int> used;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (lifetimes.used(static_cast<int>(i)) && buffers[i].space == space) used.push_back(static_cast<int>(i));
  }
  if (used.empty()) return out;
  if (placing == Placing::offsets) {
    if (auto repeated = place_repeated(trace, lifetimes, buffers, used, max_bytes, space, divisor)) return *repeated;
  }
  find_peak(trace, lifetimes, buffers, used, out);
  out.bytes = out.live_bytes;
  out.placed = placing == Placing::offsets && out.bytes <= max_bytes;
  if (!out.placed) return out;
  Packer packer(trace, order, lifetimes, buffers, used);
  out.bytes = Search(lifetimes, buffers, used, packer, out.live_bytes / Device::kAlignment, divisor).run(out.offsets);
  return out;
}

}  // namespace

Placement place(const Trace& trace, const std::vector<Buffer>& buffers, Placing placing, std::int64_t max_bytes,
                Space space) {
  return place_with(trace, buffers, placing, max_bytes, space, 1);
}

}  // namespace hawser::program
