#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "optim/decay.h"
#include "optim/lr_schedule.h"

namespace hawser::optim {
namespace optim_test {

struct Table {
  LearningRateSchedule schedule;
  std::int64_t warmup;
  double minimum;
  std::vector<double> rates;  // one per step
};

// Learning rates that transformers 5.23 sets before each optimizer.step(), with a peak of 3e-4.
const std::vector<Table> kTables = {
    {LearningRateSchedule::constant,
     4,
     0.0,
     {0, 7.4999999999999993e-05, 0.00014999999999999999, 0.00022499999999999999, 0.00029999999999999997,
      0.00029999999999999997, 0.00029999999999999997, 0.00029999999999999997, 0.00029999999999999997,
      0.00029999999999999997}},
    {LearningRateSchedule::linear,
     4,
     0.0,
     {0, 7.4999999999999993e-05, 0.00014999999999999999, 0.00022499999999999999, 0.00029999999999999997,
      0.00025000000000000001, 0.00019999999999999998, 0.00014999999999999999, 9.9999999999999991e-05,
      4.9999999999999996e-05}},
    {LearningRateSchedule::cosine,
     4,
     0.0,
     {0, 7.4999999999999993e-05, 0.00014999999999999999, 0.00022499999999999999, 0.00029999999999999997,
      0.0002799038105676658, 0.00022499999999999999, 0.00014999999999999999, 7.5000000000000021e-05,
      2.0096189432334191e-05}},
    {LearningRateSchedule::cosine,
     0,
     0.0,
     {0.00029999999999999997, 0.00027135254915624211, 0.00019635254915624211, 0.00010364745084375789,
      2.8647450843757897e-05}},
    {LearningRateSchedule::cosine,
     4,
     3e-5,
     {0, 7.4999999999999993e-05, 0.00014999999999999999, 0.00022499999999999999, 0.00029999999999999997,
      0.00028191342951089919, 0.00023249999999999999, 0.000165, 9.7500000000000025e-05, 4.808657048910077e-05}},
};

TEST(Schedule, AgreesWithTransformers) {
  for (const Table& table : kTables) {
    const LearningRatePlan plan{.learning_rate = 3e-4,
                                .schedule = table.schedule,
                                .warmup_steps = table.warmup,
                                .minimum_learning_rate = table.minimum,
                                .steps = static_cast<std::int64_t>(table.rates.size())};
    for (std::size_t i = 0; i < table.rates.size(); ++i) {
      EXPECT_NEAR(learning_rate(plan, static_cast<std::int64_t>(i) + 1), table.rates[i], 1e-18) << i;
    }
  }
}

TEST(Schedule, Edges) {
  LearningRatePlan plan{.learning_rate = 1.0,
                        .schedule = LearningRateSchedule::cosine,
                        .warmup_steps = 8,
                        .minimum_learning_rate = 0.25,
                        .steps = 4};
  EXPECT_EQ(learning_rate(plan, 4), 3.0 / 8);  // warm-up is longer than the run
  plan.warmup_steps = 4;
  EXPECT_EQ(learning_rate(plan, 5), 1.0);
  EXPECT_EQ(learning_rate(plan, 100), 0.25);  // the minimum stays after the last step
  plan.warmup_steps = 0;
  plan.schedule = LearningRateSchedule::linear;
  EXPECT_EQ(learning_rate(plan, 1), 1.0);
  EXPECT_EQ(learning_rate(plan, 3), 0.625);
  EXPECT_EQ(learning_rate(plan, 5), 0.25);
  plan.schedule = LearningRateSchedule::constant;
  EXPECT_EQ(learning_rate(plan, 100), 1.0);
  EXPECT_THROW(learning_rate(plan, 0), InternalError);
}

TEST(UpdateRuns, CoverAnyShardWithTheDecayOfItsParameters) {
  const nn::Initial zeros;
  const nn::Flat flat("flat", {},
                      {nn::full_param("norm", {100}, zeros, false), nn::full_param("a", {10, 13}, zeros, true),
                       nn::full_param("b", {128}, zeros, true), nn::full_param("bias", {5}, zeros, false)});
  const std::int64_t total = flat.total(3);
  // For each element: 0 no decay, 1 decay.
  std::vector<int> expected;
  for (int p = 0; p < 4; ++p) {
    const std::int64_t end = p < 3 ? flat.offset(p + 1) : total;
    expected.insert(expected.end(), static_cast<std::size_t>(end - flat.offset(p)), p == 1 || p == 2 ? 1 : 0);
  }
  EXPECT_EQ(update_runs(flat, 0, total, 0.5).size(), 3u);
  EXPECT_EQ(update_runs(flat, 0, total, 0).size(), 1u);
  EXPECT_TRUE(update_runs(flat, 17, 0, 0.5).empty());
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const std::int64_t begin = std::uniform_int_distribution<std::int64_t>(0, total)(random);
    const std::int64_t count = std::uniform_int_distribution<std::int64_t>(0, total - begin)(random);
    std::vector<int> got;
    for (const UpdateRun& run : update_runs(flat, begin, count, 0.5)) {
      EXPECT_EQ(run.begin, static_cast<std::int64_t>(got.size()));
      got.insert(got.end(), static_cast<std::size_t>(run.count), run.weight_decay == 0.5 ? 1 : 0);
    }
    EXPECT_EQ(got, std::vector<int>(expected.begin() + begin, expected.begin() + begin + count));
  }
}

}  // namespace optim_test
}  // namespace hawser::optim
