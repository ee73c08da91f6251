#include "report/early_stopping.h"

#include <gtest/gtest.h>

namespace hawser::report {
namespace early_stopping_test {

TEST(EarlyStopping, CountsEvaluationsWithoutImprovement) {
  EarlyStopping stopping(2, kAllSets);
  stopping.validated(0, 3);
  stopping.validated(10, 2);
  stopping.validated(20, 2);  // equal is no improvement
  EXPECT_FALSE(stopping.now());
  stopping.validated(30, 1.9);
  stopping.validated(40, 2);
  EXPECT_FALSE(stopping.now());
  stopping.validated(50, 1.95);
  EXPECT_TRUE(stopping.now());
  EXPECT_EQ(stopping.text(), "no lower validation loss in 2 evaluations; the lowest was 1.9000, after step 30");
}

TEST(EarlyStopping, AnEqualLossIsNoImprovement) {
  EarlyStopping stopping(2, kAllSets);
  for (const int step : {0, 10, 20}) stopping.validated(step, 2);
  EXPECT_TRUE(stopping.now());
  EXPECT_EQ(stopping.text(), "no lower validation loss in 2 evaluations; the lowest was 2.0000, before training");
}

TEST(EarlyStopping, CountsTheLossBeforeTraining) {
  EarlyStopping stopping(1, kAllSets);
  StepMetrics first;
  first.step = 1;
  first.initial_validation_loss = 2;
  stopping.replay(first);
  EXPECT_FALSE(stopping.now());
  StepMetrics second;
  second.step = 5;
  second.validation_loss = 2.5;
  stopping.replay(second);
  EXPECT_TRUE(stopping.now());
  EXPECT_EQ(stopping.text(), "no lower validation loss in 1 evaluation; the lowest was 2.0000, before training");
}

// All sets together improve throughout, one of them does not.
TEST(EarlyStopping, CanFollowOneSet) {
  EarlyStopping all(2, kAllSets), support(2, "support"), novels(2, "novels");
  for (int step = 1; step <= 4; ++step) {
    const ValidationLosses losses(3 - 0.1 * step, {{"novels", 4 - 0.3 * step}, {"support", step == 2 ? 1.5 : 2}});
    for (EarlyStopping* each : {&all, &support, &novels}) each->validated(step, losses);
  }
  EXPECT_FALSE(all.now());
  EXPECT_FALSE(novels.now());
  EXPECT_TRUE(support.now());
  EXPECT_EQ(support.text(),
            "no lower validation loss of support in 2 evaluations; the lowest was 1.5000, after step 2");
}

TEST(EarlyStopping, IsOffWithoutPatience) {
  EarlyStopping off(0, kAllSets);
  for (int step = 0; step < 100; ++step) off.validated(step, step);
  EXPECT_FALSE(off.now());
}

}  // namespace early_stopping_test
}  // namespace hawser::report
