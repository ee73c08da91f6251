#include "program/occupied_ranges.h"

#include <algorithm>
#include <bit>

namespace hawser::program {

bool RangeSet::add(const Range& range) {
  if (ranges_.empty() || range.first > ranges_.back().second) {
    ranges_.push_back(range);
    return true;
  }
  // The first range that ends at or after the new one's begin.
  const auto first = std::lower_bound(ranges_.begin(), ranges_.end(), range.first,
                                      [](const Range& a, std::int64_t begin) { return a.second < begin; });
  if (first->first <= range.first && range.second <= first->second) return false;
  if (range.second < first->first) {
    ranges_.insert(first, range);
    return true;
  }
  auto last = first;  // after the last range that the new one meets
  while (last != ranges_.end() && last->first <= range.second) ++last;
  *first = {std::min(first->first, range.first), std::max(std::prev(last)->second, range.second)};
  ranges_.erase(std::next(first), last);
  return true;
}

std::optional<std::int64_t> RangeSet::overlapping_end(const Range& range) const {
  const auto at = std::upper_bound(ranges_.begin(), ranges_.end(), range.first,
                                   [](std::int64_t begin, const Range& a) { return begin < a.second; });
  if (at == ranges_.end() || at->first >= range.second) return std::nullopt;
  return at->second;
}

OccupiedRanges::OccupiedRanges(std::vector<std::uint32_t> ends) : ends_(std::move(ends)), slot_of_(ends_.size()) {
  std::size_t count = (ends_.size() + kBlock - 1) / kBlock;
  ending_begin_.assign(count + 1, 0);
  const auto last_block = [&](std::size_t rank) { return (ends_[rank] - 1) / kBlock; };
  const auto ends_later = [&](std::size_t rank) {
    return last_block(rank) != rank / kBlock && blocks_of(rank).inside_end <= last_block(rank);
  };
  for (std::size_t rank = 0; rank < ends_.size(); ++rank) {
    if (ends_later(rank)) ++ending_begin_[last_block(rank) + 1];
  }
  for (std::size_t block = 0; block < count; ++block) ending_begin_[block + 1] += ending_begin_[block];
  ending_.resize(ending_begin_.back());
  std::vector<std::size_t> next(ending_begin_.begin(), ending_begin_.end() - 1);
  for (std::size_t rank = 0; rank < ends_.size(); ++rank) {
    if (ends_later(rank)) ending_[next[last_block(rank)]++] = static_cast<int>(rank);
  }
  std::size_t begin = 0;
  for (;; count = (count + kFan - 1) / kFan) {
    levels_.push_back(begin);
    begin += count;
    if (count <= 1) break;
  }
  nodes_.resize(begin);
  clear();
}

void OccupiedRanges::clear() {
  std::fill(slot_of_.begin(), slot_of_.end(), 0);
  slots_.assign(1, {-1, -1});
  slot_at_.assign(1, 0);
  position_of_.assign(1, 0);
  found_.assign(1, 0);
  for (Node& node : nodes_) {
    node.covering.clear();
    node.touching.clear();
    node.change_covers = node.change_touches = false;
  }
}

OccupiedRanges::Blocks OccupiedRanges::blocks_of(std::size_t rank) const {
  const std::size_t end = ends_[rank];
  return {.first = rank / kBlock,
          .last = (end - 1) / kBlock,
          .inside = (rank + kBlock - 1) / kBlock,
          .inside_end = end == ends_.size() ? (end + kBlock - 1) / kBlock : end / kBlock};
}

template <class Path, class Inner>
void OccupiedRanges::walk(const Blocks& blocks, const Path& path, const Inner& inner) const {
  std::size_t node = blocks.first;
  for (std::size_t level = 0; level < levels_.size() && path(levels_[level] + node); ++level) node /= kFan;
  node = blocks.last;
  std::size_t other = blocks.first;
  for (std::size_t level = 0; node != other && path(levels_[level] + node); ++level, node /= kFan) other /= kFan;
  std::size_t lo = blocks.inside, hi = std::max(lo, blocks.inside_end);
  for (std::size_t level = 0; lo < hi; lo /= kFan, hi /= kFan, ++level) {
    // The last level has one node, which ends up in the second loop.
    for (; lo < hi && lo % kFan != 0; ++lo) inner(levels_[level] + lo);
    for (; lo < hi && hi % kFan != 0; --hi) inner(levels_[level] + hi - 1);
  }
}

void OccupiedRanges::add(std::size_t rank, const Range& range) {
  slot_of_[rank] = slot(range);
  // The nodes above one that has the range have it, too.
  walk(
      blocks_of(rank), [&](std::size_t node) { return nodes_[node].touching.add(range); },
      [&](std::size_t node) {
        nodes_[node].covering.add(range);
        nodes_[node].touching.add(range);
      });
}

std::uint32_t OccupiedRanges::slot(const Range& range) {
  const auto at = std::lower_bound(slots_.begin(), slots_.end(), range);
  const auto position = static_cast<std::size_t>(at - slots_.begin());
  if (at != slots_.end() && *at == range) return slot_at_[position];
  const auto number = static_cast<std::uint32_t>(slots_.size());
  slots_.insert(at, range);
  slot_at_.insert(slot_at_.begin() + static_cast<std::ptrdiff_t>(position), number);
  position_of_.push_back(0);
  for (std::size_t i = position; i < slots_.size(); ++i) position_of_[slot_at_[i]] = static_cast<std::uint32_t>(i);
  found_.resize(slots_.size() / 64 + 1, 0);
  return number;
}

void OccupiedRanges::find_in_block(std::size_t block, std::size_t rank) {
  // Locals: the writes could change members, as far as the compiler knows.
  const std::uint32_t *const ends = ends_.data(), *const slot_of = slot_of_.data(),
                             *const position_of = position_of_.data();
  std::uint64_t* const found = found_.data();
  const std::size_t end = ends[rank], begin = block * kBlock, block_end = std::min(begin + kBlock, ends_.size());
  const auto compare = [=](std::size_t other, bool conflict) {
    const std::uint32_t position = position_of[slot_of[other]] & (0U - static_cast<std::uint32_t>(conflict));
    found[position / 64] |= std::uint64_t{1} << (position % 64);
  };
  for (std::size_t other = begin, last = std::min(block_end, end); other < last; ++other) {
    compare(other, ends[other] > rank);
  }
  const int* const last = ending_.data() + ending_begin_[block + 1];
  for (const int* other = ending_.data() + ending_begin_[block]; other != last; ++other) {
    compare(static_cast<std::size_t>(*other), ends[*other] > rank && static_cast<std::size_t>(*other) < end);
  }
}

void OccupiedRanges::find(std::size_t rank, const int* also, const int* also_end) {
  sets_.clear();
  const Blocks blocks = blocks_of(rank);
  if (blocks.first < blocks.inside) find_in_block(blocks.first, rank);
  if (blocks.last >= blocks.inside_end && blocks.last >= blocks.inside) find_in_block(blocks.last, rank);
  for (; also != also_end; ++also) {
    const std::uint32_t position = position_of_[slot_of_[static_cast<std::size_t>(*also)]];
    found_[position / 64] |= std::uint64_t{1} << (position % 64);
  }
  found_[0] &= ~std::uint64_t{1};
  single_.clear();
  for (std::size_t word = 0; word < found_.size(); ++word) {
    for (std::uint64_t bits = std::exchange(found_[word], 0); bits != 0; bits &= bits - 1) {
      single_.add_last(slots_[word * 64 + static_cast<std::size_t>(std::countr_zero(bits))]);
    }
  }
  const auto take = [&](const RangeSet& set) {
    if (!set.empty()) sets_.push_back(&set);
    return true;
  };
  take(single_);
  walk(
      blocks, [&](std::size_t node) { return take(nodes_[node].covering); },
      [&](std::size_t node) { take(nodes_[node].touching); });
}

bool OccupiedRanges::free(const Range& range) {
  for (std::size_t i = 0; i < sets_.size(); ++i) {
    if (!sets_[i]->overlapping_end(range)) continue;
    std::swap(sets_[i], sets_[0]);  // it probably overlaps the next range, too
    return false;
  }
  return true;
}

std::int64_t OccupiedRanges::lowest_gap(std::int64_t size) const {
  std::int64_t lowest = 0;
  for (std::size_t left = sets_.size(), i = 0; left > 0; --left, i = i + 1 < sets_.size() ? i + 1 : 0) {
    while (const auto end = sets_[i]->overlapping_end({lowest, lowest + size})) {
      lowest = *end;
      left = sets_.size();  // all others again
    }
  }
  return lowest;
}

void OccupiedRanges::change(std::size_t rank) {
  walk(
      blocks_of(rank), [&](std::size_t node) { return !std::exchange(nodes_[node].change_touches, true); },
      [&](std::size_t node) { nodes_[node].change_covers = nodes_[node].change_touches = true; });
}

bool OccupiedRanges::changed(std::size_t rank) const {
  bool out = false;
  // A block that is live in part counts as a block inside.
  Blocks blocks = blocks_of(rank);
  blocks.inside = blocks.first;
  blocks.inside_end = blocks.last + 1;
  walk(
      blocks, [&](std::size_t node) { return !(out = out || nodes_[node].change_covers); },
      [&](std::size_t node) { out = out || nodes_[node].change_touches; });
  return out;
}

}  // namespace hawser::program
