// `OccupiedRanges`: which ranges of an arena are occupied at which times; the interval structure of Packer.
//
// Times are ranks 0 to n - 1. The buffer with rank r is live at the times [r, ends[r]). Times are grouped in blocks of
// kBlock, and a tree of fan-out kFan is above the blocks. Each node has two sets of ranges:
//   covering   ranges of buffers that are live at all times of the node
//   touching   ranges of buffers that are live at some time of the node
// A buffer that is live at all times of a node's parent is in a `covering` of a node above; it may be missing in those
// of the node. So the ranges that are occupied in a buffer's life are in
//   - `covering` of the nodes above and at its first and last block,
//   - `touching` of the largest nodes that are completely inside of its life,
//   - and in blocks that are only partly inside: single buffers, whose times are compared.
// A set has few ranges, since those of buffers next to each other are joined. Adding and finding take O(log n) sets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace hawser::program {

using Range = std::pair<std::int64_t, std::int64_t>;  // [first, second)

// Disjoint ranges, with gaps between, in ascending order.
class RangeSet {
 public:
  // Adds the range; false if the set has all of it already.
  bool add(const Range& range);
  // As add, of a range that begins at or after all others' begins.
  void add_last(const Range& range) {
    if (ranges_.empty() || range.first > ranges_.back().second) {
      ranges_.push_back(range);
    } else {
      ranges_.back().second = std::max(ranges_.back().second, range.second);
    }
  }
  // The end of the first of the set's ranges that overlaps the range.
  std::optional<std::int64_t> overlapping_end(const Range& range) const;
  bool empty() const { return ranges_.empty(); }
  void clear() { ranges_.clear(); }

 private:
  std::vector<Range> ranges_;
};

class OccupiedRanges {
 public:
  // `ends`: by rank, each above its rank and at most their number.
  explicit OccupiedRanges(std::vector<std::uint32_t> ends);

  std::uint32_t end_of(std::size_t rank) const { return ends_[rank]; }
  void clear();
  void add(std::size_t rank, const Range& range);
  // Collects the ranges of all added buffers that are live at a time of `rank`'s buffer. `also`: further ranks, which
  // count if they have been added.
  void find(std::size_t rank, const int* also, const int* also_end);

  // The results of the last find(): whether a range overlaps none of them; the lowest offset at which `size` fits.
  bool free(const Range& range);
  std::int64_t lowest_gap(std::int64_t size) const;

  // Records that a buffer changed; `changed` is true if a buffer that is live at a time of `rank`'s has changed, and
  // for some other ranks.
  void change(std::size_t rank);
  bool changed(std::size_t rank) const;

 private:
  static constexpr std::size_t kBlock = 32, kFan = 8;

  struct Node {
    RangeSet covering, touching;
    bool change_covers = false, change_touches = false;
  };
  // The blocks [first, last] of a rank's life, and those that are inside of it: [inside, inside_end).
  struct Blocks {
    std::size_t first, last, inside, inside_end;
  };
  Blocks blocks_of(std::size_t rank) const;
  // Calls path(node) for the first and the last block and the nodes above, upwards, until it returns false; then
  // inner(node) for the largest nodes inside.
  template <class Path, class Inner>
  void walk(const Blocks& blocks, const Path& path, const Inner& inner) const;
  // Collects the slots of the conflicts in one block, and of those that end in it.
  void find_in_block(std::size_t block, std::size_t rank);
  std::uint32_t slot(const Range& range);

  std::vector<std::uint32_t> ends_;
  // The distinct ranges of added buffers, ascending: many buffers share one. Slot 0, at position 0, is that of the
  // buffers that have not been added.
  std::vector<Range> slots_;
  std::vector<std::uint32_t> slot_at_, position_of_;  // slot by position, position by slot
  std::vector<std::uint32_t> slot_of_;                // by rank
  std::vector<std::size_t> levels_;                   // the index of each level's first node
  std::vector<Node> nodes_;
  std::vector<int> ending_;                // ranks of earlier blocks that end in a block, from ending_begin_
  std::vector<std::size_t> ending_begin_;  // by block
  std::vector<std::uint64_t> found_;       // bits by position of a slot; 0 between calls
  // Results of find().
  RangeSet single_;  // of the buffers that were compared
  std::vector<const RangeSet*> sets_;
};

}  // namespace hawser::program
