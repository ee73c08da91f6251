// Which Linear falls back, and when.
#include "engine/fp8_fallback.h"

#include <gtest/gtest.h>

namespace hawser::engine {
namespace fp8_fallback_test {

using enum nn::Site;

TEST(SaturationHistory, ALinearIsDueAfterEnoughSteps) {
  SaturationHistory history;
  EXPECT_FALSE(history.due(1));
  history.add({10, 1, up_projection});
  history.add({11, 1, down_projection});
  history.add({12, 3, up_projection});
  history.add({13, 1, up_projection});
  EXPECT_FALSE(history.due(3)) << "another site, or another layer";
  history.add({13, 1, up_projection});
  history.add({13, 1, up_projection});
  EXPECT_FALSE(history.due(3)) << "a step counts once, however often it is replayed";
  history.add({14, 1, up_projection});
  EXPECT_EQ(history.due(3), (SaturatedStep{14, 1, up_projection}));
  EXPECT_EQ(history.count({14, 1, up_projection}), 3);
  EXPECT_FALSE(history.due(4));
  EXPECT_FALSE(history.due(0)) << "never";
}

TEST(SaturationHistory, OldStepsDoNotCount) {
  SaturationHistory history;
  history.add({1, 0, up_projection});
  history.add({2, 0, up_projection});
  history.add({SaturationHistory::kWindow + 1, 0, up_projection});
  EXPECT_FALSE(history.due(3)) << "step 1 is none of the last 100";
  history.add({SaturationHistory::kWindow + 1, 0, down_projection});
  EXPECT_EQ(history.steps().size(), 3u);
  SaturationHistory within;
  for (const std::int64_t step : {1, 2, 100}) within.add({step, 0, up_projection});
  EXPECT_TRUE(within.due(3));
}

TEST(SaturationHistory, ALinearThatCannotFallBackIsNotDueAgain) {
  SaturationHistory history;
  for (const std::int64_t step : {1, 2}) {
    history.add({step, 0, up_projection});
    history.add({step, 2, qkv_projection});
  }
  ASSERT_EQ(history.due(2), (SaturatedStep{2, 2, qkv_projection}));
  history.keep_in_fp8(*history.due(2));
  EXPECT_EQ(history.due(2), (SaturatedStep{2, 0, up_projection}));
  history.add({3, 2, qkv_projection});
  EXPECT_EQ(history.due(2), (SaturatedStep{2, 0, up_projection}));
  history.set_steps({{1, 0, up_projection}, {2, 2, qkv_projection}, {3, 2, qkv_projection}});
  EXPECT_FALSE(history.due(2));
}

TEST(Fp8Fallback, ModulesOfAll) {
  EXPECT_EQ(modules_of({{3, {"a", "b"}}, {5, {"c"}}}), (std::vector<std::string>{"a", "b", "c"}));
}

}  // namespace fp8_fallback_test
}  // namespace hawser::engine
