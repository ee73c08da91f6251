#include "program/repetition.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/philox.h"
#include "program/arena_owners.h"

namespace hawser::program {

namespace {

// Periods to try, and the hashes to take them from: those that occur least often. A few of them are in the items before
// and after the part that repeats.
constexpr std::size_t kMaxPeriods = 16, kMaxHashes = 64;
constexpr std::size_t kMinCount = kKeptBefore + kKeptAfter + kMaxTile;

std::uint64_t mix(std::uint64_t hash, std::uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 32;
}

bool contains(const Buffer& buffer, std::uint64_t address) {
  return address >= buffer.address && address < buffer.address + static_cast<std::uint64_t>(buffer.bytes);
}

// Calls visit(access, buffer) for each access of an item; -1: it is in no buffer.
template <class Visit>
void for_each_access(const Trace& trace, const Lifetimes& lifetimes, const std::vector<Buffer>& buffers,
                     std::size_t item, const Visit& visit) {
  const std::span<const int> accessed = lifetimes.accessed(static_cast<int>(item));
  std::size_t next = 0;
  for (const Access& access : trace.items[item].record.accesses) {
    const bool inside =
        next < accessed.size() && contains(buffers[static_cast<std::size_t>(accessed[next])], access.address);
    visit(access, inside ? accessed[next++] : -1);
  }
}

// By item: equal for items of which one can repeat the other. Two others may have one hash: the result of place() is
// checked.
std::vector<std::uint64_t> hash_items(const Trace& trace, const Lifetimes& lifetimes,
                                      const std::vector<Buffer>& buffers) {
  std::vector<std::uint64_t> hashes;
  hashes.reserve(trace.items.size());
  for (std::size_t i = 0; i < trace.items.size(); ++i) {
    const TraceItem& item = trace.items[i];
    std::uint64_t hash = mix(static_cast<std::uint64_t>(item.stream), static_cast<std::uint64_t>(item.kind));
    if (item.kind == TraceItem::Kind::wait) hash = mix(hash, i - static_cast<std::size_t>(item.target));
    if (item.kind == TraceItem::Kind::work) hash = mix(hash, fnv1a(item.record.name));
    for_each_access(trace, lifetimes, buffers, i, [&](const Access& access, int b) {
      const Buffer* const buffer = b < 0 ? nullptr : &buffers[static_cast<std::size_t>(b)];
      // Persistent buffers have no offset.
      if (buffer == nullptr || is_persistent(buffer->space)) {
        hash = mix(hash, 1);
        return;
      }
      hash = mix(hash, static_cast<std::uint64_t>(buffer->bytes));
      hash = mix(hash, access.address - buffer->address);
      hash = mix(hash, static_cast<std::uint64_t>(access.row_bytes));
      hash = mix(hash, static_cast<std::uint64_t>(access.rows));
      hash = mix(hash, static_cast<std::uint64_t>(access.stride));
      hash = mix(hash, 2 + (access.write ? 1 : 0) + (buffer->space == Space::host ? 2 : 0));
    });
    hashes.push_back(hash);
  }
  return hashes;
}

// The most frequent distance between occurrences that follow each other; of several the shortest.
std::size_t usual_distance(const std::vector<std::size_t>& positions) {
  std::map<std::size_t, int> counts;
  for (std::size_t i = 1; i < positions.size(); ++i) ++counts[positions[i] - positions[i - 1]];
  return std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; })->first;
}

// The periods of the hashes that occur least often, but often enough: those of an outer loop.
std::vector<std::size_t> periods_of(const std::vector<std::uint64_t>& hashes) {
  std::unordered_map<std::uint64_t, std::pair<std::size_t, std::size_t>> counts;  // count, first position
  for (std::size_t i = 0; i < hashes.size(); ++i) ++counts.try_emplace(hashes[i], 0, i).first->second.first;
  std::vector<std::pair<std::size_t, std::size_t>> rare;
  for (const auto& [hash, count] : counts) {
    if (count.first >= kMinCount) rare.push_back(count);
  }
  std::ranges::sort(rare);
  if (rare.size() > kMaxHashes) rare.resize(kMaxHashes);
  std::unordered_map<std::uint64_t, std::vector<std::size_t>> positions;
  for (const auto& [count, first] : rare) positions[hashes[first]].reserve(count);
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (const auto at = positions.find(hashes[i]); at != positions.end()) at->second.push_back(i);
  }
  std::vector<std::size_t> periods;
  for (const auto& [count, first] : rare) {
    const std::size_t period = usual_distance(positions.at(hashes[first]));
    if (std::ranges::find(periods, period) == periods.end()) periods.push_back(period);
    if (periods.size() == kMaxPeriods) break;
  }
  return periods;
}

// The longest part with a period.
Repetition longest(const std::vector<std::uint64_t>& hashes, std::size_t period) {
  Repetition out{.begin = 0, .period = period, .count = 1};
  std::size_t begin = 0;
  for (std::size_t i = 0; i + period <= hashes.size(); ++i) {
    if (i + period < hashes.size() && hashes[i] == hashes[i + period]) continue;
    const std::size_t count = (i - begin) / period + 1;
    if (count > out.count) out = {.begin = begin, .period = period, .count = count};
    begin = i + 1;
  }
  return out;
}

std::size_t left_out(const Repetition& repetition) {
  constexpr std::size_t kKept = kKeptBefore + kKeptAfter;
  if (repetition.count < kKept) return 0;
  return (repetition.count - kKept) / kMaxTile * kMaxTile * repetition.period;
}

}  // namespace

std::optional<Repetition> find_repetition(const Trace& trace, const Lifetimes& lifetimes,
                                          const std::vector<Buffer>& buffers) {
  const std::vector<std::uint64_t> hashes = hash_items(trace, lifetimes, buffers);
  Repetition best;
  for (const std::size_t period : periods_of(hashes)) {
    const Repetition found = longest(hashes, period);
    if (left_out(found) > left_out(best)) best = found;
  }
  // A few layers less are not worth another placement: without them the trace repeats as before.
  if (2 * left_out(best) < trace.items.size()) return std::nullopt;
  return best;
}

ShortTrace::ShortTrace(const Trace& trace, const Lifetimes& lifetimes, const std::vector<Buffer>& buffers)
    : complete_(trace), lifetimes_(lifetimes), buffers_(buffers) {}

std::optional<ShortTrace> ShortTrace::make(const Trace& trace, const Lifetimes& lifetimes,
                                           const std::vector<Buffer>& buffers) {
  const std::optional<Repetition> repetition = find_repetition(trace, lifetimes, buffers);
  if (!repetition) return std::nullopt;
  ShortTrace out(trace, lifetimes, buffers);
  if (!out.cut(*repetition)) return std::nullopt;
  return out;
}

bool ShortTrace::cut(const Repetition& repetition) {
  period_ = static_cast<int>(repetition.period);
  begin_ = static_cast<int>(repetition.begin + kKeptBefore * repetition.period);
  left_out_ = static_cast<int>(left_out(repetition));
  if (!lives_repeat()) return false;
  const std::size_t end = repetition.begin + kKeptBefore * repetition.period + left_out(repetition);
  short_.streams = complete_.streams;
  short_.items.assign(complete_.items.begin(), complete_.items.begin() + begin_);
  short_.items.reserve(complete_.items.size() - static_cast<std::size_t>(left_out_));
  for (std::size_t i = end; i < complete_.items.size(); ++i) {
    if (!shorten(short_.items.emplace_back(complete_.items[i]), i)) return false;
  }
  return true;
}

// A buffer that is accessed before the cut is then accessed soon after, or after what is left out, or no more. In
// backward of a step's layers, what forward saved is not.
bool ShortTrace::lives_repeat() const {
  const int soon = begin_ + static_cast<int>(kMaxTile) * period_, end = begin_ + left_out_;
  for (int b = 0; b < static_cast<int>(buffers_.size()); ++b) {
    const bool placed = !is_persistent(buffers_[static_cast<std::size_t>(b)].space);
    const int first = lifetimes_.first_item(b), last = lifetimes_.last_item(b);
    if (placed && first >= 0 && first < begin_ && last >= soon && last < end) return false;
  }
  return true;
}

bool ShortTrace::shorten(TraceItem& item, std::size_t index) const {
  const int end = begin_ + left_out_;
  if (item.kind == TraceItem::Kind::wait && item.target >= begin_) {
    item.target -= left_out_;
    if (item.target < begin_ - static_cast<int>(kKeptBefore) * period_) return false;
  }
  bool found = true;
  std::size_t a = 0;
  for_each_access(complete_, lifetimes_, buffers_, index, [&](const Access& access, int buffer) {
    Access& own = item.record.accesses[a++];
    const int first = buffer < 0 ? -1 : lifetimes_.first_item(buffer);
    if (first < begin_ || first >= end) return;
    const std::optional<int> other =
        first < left_out_ ? std::nullopt : counterpart(buffer, static_cast<std::size_t>(first - left_out_));
    if (!other) {
      found = false;
      return;
    }
    own.address = access.address - buffers_[static_cast<std::size_t>(buffer)].address +
                  buffers_[static_cast<std::size_t>(*other)].address;
  });
  return found;
}

std::optional<int> ShortTrace::counterpart(int buffer, std::size_t item) const {
  const auto first = static_cast<std::size_t>(lifetimes_.first_item(buffer));
  const std::span<const int> here = lifetimes_.accessed(static_cast<int>(first)),
                             there = lifetimes_.accessed(static_cast<int>(item));
  const auto place = static_cast<std::size_t>(std::ranges::find(here, buffer) - here.begin());
  if (place >= there.size()) return std::nullopt;
  const int other = there[place];
  const Buffer &a = buffers_[static_cast<std::size_t>(buffer)], &b = buffers_[static_cast<std::size_t>(other)];
  const bool same = a.bytes == b.bytes && a.space == b.space && lifetimes_.first_item(other) == static_cast<int>(item);
  return same ? std::optional(other) : std::nullopt;
}

bool ShortTrace::repeat_offsets(std::vector<std::int64_t>& offsets, std::size_t tile, Space space) const {
  const int length = period_ * static_cast<int>(tile);
  for (std::size_t b = 0; b < buffers_.size(); ++b) {
    const int first = lifetimes_.first_item(static_cast<int>(b));
    if (first < begin_ || first >= begin_ + left_out_ || buffers_[b].space != space) continue;
    const std::optional<int> other =
        counterpart(static_cast<int>(b), static_cast<std::size_t>(begin_ - length + (first - begin_) % length));
    if (!other) return false;
    offsets[b] = offsets[static_cast<std::size_t>(*other)];
  }
  return true;
}

bool shares_in_order(const Lifetimes& lifetimes, const std::vector<Buffer>& buffers,
                     const std::vector<std::int64_t>& offsets, const std::vector<int>& used) {
  std::vector<int> by_first = used;
  std::ranges::stable_sort(by_first, {}, [&](int b) { return lifetimes.first_item(b); });
  ArenaOwners owners;
  bool ordered = true;
  for (const int b : by_first) {
    const auto index = static_cast<std::size_t>(b);
    if (buffers[index].bytes == 0) continue;
    owners.take(offsets[index], offsets[index] + buffers[index].bytes, b,
                [&](int earlier) { ordered = ordered && lifetimes.before(earlier, b); });
    if (!ordered) return false;
  }
  return true;
}

}  // namespace hawser::program
