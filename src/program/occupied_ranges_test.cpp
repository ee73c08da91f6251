#include "program/occupied_ranges.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "program/testing/traces.h"

namespace hawser::program {
namespace occupied_ranges_test {

using testing::pick;

// Ranks that end at random: some at once, some much later, some at the end.
std::vector<std::uint32_t> random_ends(std::mt19937& random, int count) {
  std::vector<std::uint32_t> ends;
  for (int rank = 0; rank < count; ++rank) {
    const int kind = pick(random, 0, 10);
    const int life = kind < 6 ? pick(random, 1, 12) : kind < 9 ? pick(random, 1, count + 1) : count;
    ends.push_back(static_cast<std::uint32_t>(std::min(count, rank + life)));
  }
  return ends;
}

TEST(OccupiedRanges, EqualAComparisonOfAllPairs) {
  int gaps_below_others = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const int count = pick(random, 1, seed % 4 == 0 ? 3000 : 300);
    const std::vector<std::uint32_t> ends = random_ends(random, count);
    OccupiedRanges occupied(ends);
    const auto overlap = [&](int a, int b) {
      return a < static_cast<int>(ends[static_cast<std::size_t>(b)]) &&
             b < static_cast<int>(ends[static_cast<std::size_t>(a)]);
    };
    for (int round = 0; round < 2; ++round) {  // the second after clear()
      occupied.clear();
      std::vector<std::pair<int, Range>> added;
      std::vector<int> changed;
      std::vector<int> order(static_cast<std::size_t>(count));
      for (int rank = 0; rank < count; ++rank) order[static_cast<std::size_t>(rank)] = rank;
      std::shuffle(order.begin(), order.end(), random);
      for (const int rank : order) {
        if (pick(random, 0, count > 300 ? 8 : 2) == 0) {
          const std::vector<int> also{pick(random, 0, count), pick(random, 0, count)};
          std::vector<Range> taken;
          for (const auto& [other, range] : added) {
            if (overlap(rank, other) || other == also[0] || other == also[1]) taken.push_back(range);
          }
          const auto free = [&](const Range& range) {
            return std::ranges::none_of(
                taken, [&](const Range& t) { return t.first < range.second && range.first < t.second; });
          };
          occupied.find(static_cast<std::size_t>(rank), also.data(), also.data() + also.size());
          for (int i = 0; i < 8; ++i) {
            const std::int64_t begin = pick(random, 0, 60), size = pick(random, 1, 9);
            ASSERT_EQ(occupied.free({begin, begin + size}), free({begin, begin + size})) << seed;
            std::int64_t lowest = 0;
            while (!free({lowest, lowest + size})) ++lowest;
            ASSERT_EQ(occupied.lowest_gap(size), lowest) << seed;
            gaps_below_others += std::ranges::any_of(taken, [&](const Range& t) { return t.first > lowest; });
          }
          const bool meets = std::ranges::any_of(changed, [&](int other) { return overlap(rank, other); });
          // It may be true for others.
          ASSERT_TRUE(!meets || occupied.changed(static_cast<std::size_t>(rank))) << seed;
        }
        // Any ranges: those that overlap each other, too.
        const std::int64_t begin = pick(random, 0, 40);
        added.emplace_back(rank, Range(begin, begin + pick(random, 1, 6)));
        occupied.add(static_cast<std::size_t>(rank), added.back().second);
        if (pick(random, 0, 40) != 0) continue;
        changed.push_back(rank);
        occupied.change(static_cast<std::size_t>(rank));
      }
    }
  }
  EXPECT_GT(gaps_below_others, 1000);
}

// Most buffers of a large step are far from each other in time: what changes early is not computed again late.
TEST(OccupiedRanges, ChangesAreLocal) {
  constexpr std::size_t kCount = 5000;
  std::vector<std::uint32_t> ends;
  for (std::uint32_t rank = 0; rank < kCount; ++rank) ends.push_back(std::min<std::uint32_t>(rank + 3, kCount));
  OccupiedRanges occupied(ends);
  occupied.change(1000);
  std::size_t changed = 0;
  for (std::size_t rank = 0; rank < kCount; ++rank) changed += occupied.changed(rank);
  EXPECT_TRUE(occupied.changed(1000) && occupied.changed(1002) && occupied.changed(998));
  EXPECT_LE(changed, 64u);
}

TEST(RangeSet, JoinsRangesThatMeet) {
  RangeSet set;
  EXPECT_TRUE(set.empty());
  EXPECT_TRUE(set.add({10, 20}));
  EXPECT_TRUE(set.add({30, 40}));
  EXPECT_FALSE(set.add({12, 20}));
  EXPECT_FALSE(set.overlapping_end({20, 30}));
  EXPECT_EQ(set.overlapping_end({0, 100}), 20);
  EXPECT_TRUE(set.add({20, 30}));
  EXPECT_EQ(set.overlapping_end({0, 11}), 40);
  EXPECT_TRUE(set.add({0, 5}));
  EXPECT_FALSE(set.overlapping_end({5, 10}));
  EXPECT_TRUE(set.add({1, 50}));
  EXPECT_FALSE(set.add({0, 50}));
}

}  // namespace occupied_ranges_test
}  // namespace hawser::program
