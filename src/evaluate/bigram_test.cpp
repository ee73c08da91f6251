// Witten-Bell bigram model.
#include "evaluate/bigram.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace hawser::evaluate {
namespace bigram_test {

// Documents 0 1 0 1 2 and 3 0; vocabulary 5. By hand: c = 3 2 1 1 0, N = 7, T = 4, so P = 19 14 9 9 4, over 55.
WittenBell small_model() {
  WittenBell model(5);
  const std::vector<std::int32_t> first = {0, 1, 0, 1, 2}, second = {3, 0};
  model.fit(first);
  model.fit(second);
  return model;
}

TEST(WittenBell, AgreesWithHandComputedProbabilities) {
  const WittenBell model = small_model();
  const double unigram[] = {19.0 / 55, 14.0 / 55, 9.0 / 55, 9.0 / 55, 4.0 / 55};
  for (int w = 0; w < 5; ++w) EXPECT_NEAR(model.probability(w), unigram[w], 1e-15);
  EXPECT_NEAR(model.probability(0, 1), 124.0 / 165, 1e-15);  // (2 + 1 * 14/55) / (2 + 1)
  EXPECT_NEAR(model.probability(0, 0), 19.0 / 165, 1e-15);   // (0 + 1 * 19/55) / (2 + 1)
  EXPECT_NEAR(model.probability(1, 2), 73.0 / 220, 1e-15);   // (1 + 2 * 9/55) / (2 + 2)
  EXPECT_NEAR(model.probability(3, 0), 37.0 / 55, 1e-15);    // (1 + 1 * 19/55) / (1 + 1)
  EXPECT_NEAR(model.probability(2, 1), 14.0 / 55, 1e-15);    // 2 only ends a document: unigram
  EXPECT_NEAR(model.probability(4, 3), 9.0 / 55, 1e-15);     // 4 was never seen
  for (int h = 0; h < 5; ++h) {
    double sum = 0;
    for (int w = 0; w < 5; ++w) sum += model.probability(h, w);
    EXPECT_NEAR(sum, 1.0, 1e-15);
  }
}

TEST(WittenBell, ScoresAllTokensButTheFirst) {
  const WittenBell model = small_model();
  const std::vector<std::int32_t> held_out = {0, 1, 4, 0, 2, 3}, one = {3}, none;
  const WittenBell::Score score = model.score(held_out);
  EXPECT_EQ(score.tokens, 5);
  EXPECT_NEAR(score.nats, 9.381573623494713, 1e-12);
  EXPECT_NEAR(score.mean(), 9.381573623494713 / 5, 1e-12);
  EXPECT_EQ(model.score(one).tokens, 0);
  EXPECT_EQ(model.score(none).mean(), 0.0);
  WittenBell::Score sum = score;
  sum += score;
  EXPECT_EQ(sum.tokens, 10);
  EXPECT_EQ(sum.mean(), score.mean());
}

TEST(WittenBell, NothingSeenIsUniformAndIdsAreChecked) {
  WittenBell model(4);
  EXPECT_EQ(model.probability(2), 0.25);
  EXPECT_EQ(model.probability(1, 3), 0.25);
  const std::vector<std::int32_t> wrong = {1, 4}, negative = {-1};
  EXPECT_THROW(model.fit(wrong), InternalError);
  EXPECT_THROW(model.score(wrong), InternalError);
  EXPECT_THROW(model.fit(negative), InternalError);
}

}  // namespace bigram_test
}  // namespace hawser::evaluate
