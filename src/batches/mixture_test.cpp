#include "batches/mixture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "batches/sequence_order.h"

namespace hawser::batches {
namespace mixture_test {

std::size_t set_of(std::int64_t index, const std::vector<std::int64_t>& sizes) {
  std::size_t set = 0;
  for (; index >= sizes[set]; ++set) index -= sizes[set];
  return set;
}

TEST(Mixture, GivesEachSetItsShareAtAnyTime) {
  const std::vector<std::int64_t> sizes{7, 1000, 50};
  const std::vector<double> shares{0.1, 0.62, 0.28};
  const Mixture mixture(sizes, {{.from = 0, .of_sets = shares}}, 7);
  std::vector<std::int64_t> counts(3);
  for (std::int64_t n = 0; n < 5000; ++n) {
    EXPECT_EQ(mixture.counts(n), counts) << n;
    ++counts[set_of(mixture.at(n), sizes)];
    for (std::size_t set = 0; set < 3; ++set) {
      EXPECT_LT(std::abs(static_cast<double>(counts[set]) - shares[set] * static_cast<double>(n + 1)), 2.0) << n;
    }
  }
}

TEST(Mixture, ReadsEachSetInItsOwnOrder) {
  const std::vector<std::int64_t> sizes{5, 8};
  const Mixture one(sizes, {{0, {0.5, 0.5}}}, 3), other(sizes, {{0, {0.2, 0.8}}}, 3);
  const auto order = [&](const Mixture& mixture, std::size_t set) {
    std::vector<std::int64_t> out;
    for (std::int64_t n = 0; out.size() < 16; ++n) {
      if (set_of(mixture.at(n), sizes) == set) out.push_back(mixture.at(n));
    }
    return out;
  };
  for (const std::size_t set : {0u, 1u}) {
    const std::vector<std::int64_t> own = order(one, set);
    EXPECT_EQ(own, order(other, set));
    EXPECT_EQ(std::set(own.begin(), own.begin() + sizes[set]).size(), static_cast<std::size_t>(sizes[set]))
        << "all of it once an epoch";
  }
  const Mixture alone({9}, {{0, {1.0}}}, 3);
  for (std::int64_t n = 0; n < 30; ++n) EXPECT_EQ(alone.at(n), sequence_at(3, 9, n));
}

// A run that is resumed with other weights continues each set where it was.
TEST(Mixture, SharesMayChange) {
  const std::vector<std::int64_t> sizes{100, 100};
  const Mixture before(sizes, {{0, {0.9, 0.1}}}, 3), after(sizes, {{0, {0.9, 0.1}}, {200, {0.25, 0.75}}}, 3);
  for (std::int64_t n = 0; n < 200; ++n) EXPECT_EQ(before.at(n), after.at(n)) << n;
  const std::vector<std::int64_t> at_change = after.counts(200), later = after.counts(600);
  EXPECT_NEAR(static_cast<double>(later[0] - at_change[0]), 100.0, 1.0);
  EXPECT_NEAR(static_cast<double>(later[1] - at_change[1]), 300.0, 1.0);
  std::int64_t first = 200;
  while (set_of(after.at(first), sizes) != 1) ++first;
  EXPECT_EQ(after.at(first) - 100, sequence_of_set(3, 1, 100, at_change[1]));
}

TEST(Mixture, SharesChangeWithTheirFirstSequence) {
  const std::vector<std::int64_t> sizes{10, 10};
  const Mixture mixture(sizes, {{0, {1, 0}}, {5, {0, 1}}, {9, {1, 0}}}, 3);
  std::vector<std::size_t> sets;
  for (std::int64_t n = 0; n < 12; ++n) sets.push_back(set_of(mixture.at(n), sizes));
  EXPECT_EQ(sets, (std::vector<std::size_t>{0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0}));
}

}  // namespace mixture_test
}  // namespace hawser::batches
