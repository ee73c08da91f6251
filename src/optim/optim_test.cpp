#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "device/device.h"
#include "optim/adamw_optimizer.h"
#include "optim/decay.h"
#include "optim/lr_schedule.h"

namespace hawser::optim {
namespace optim_test {

struct Table {
  LearningRateSchedule schedule;
  std::int64_t warmup = 0;
  double minimum = 0;
  std::vector<double> rates = {};  // one per step
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

struct LaterTable {
  LearningRateSchedule schedule;
  std::int64_t warmup = 0;
  double minimum = 0;
  std::int64_t steps = 0;
  std::int64_t decay_steps = 0;
  DecayType decay_type = DecayType::cosine;
  double power = 1;
  std::vector<double> rates;  // one per step; may be more than the run has
};

// The same of transformers 5.24: _get_wsd_scheduler_lambda, _get_inverse_sqrt_schedule_lr_lambda and
// _get_polynomial_decay_schedule_with_warmup_lr_lambda of optimization.py.
const std::vector<LaterTable> kLaterTables = {
    {.schedule = LearningRateSchedule::wsd,
     .warmup = 3,
     .minimum = 0.0,
     .steps = 12,
     .decay_steps = 4,
     .decay_type = DecayType::linear,
     .rates = {0, 9.9999999999999991e-05, 0.00019999999999999998, 0.00029999999999999997, 0.00029999999999999997,
               0.00029999999999999997, 0.00029999999999999997, 0.00029999999999999997, 0.00029999999999999997,
               0.00022499999999999999, 0.00014999999999999999, 7.4999999999999993e-05, 0, 0}},
    {.schedule = LearningRateSchedule::wsd,
     .warmup = 3,
     .minimum = 3e-5,
     .steps = 12,
     .decay_steps = 4,
     .decay_type = DecayType::linear,
     .rates = {2.9999999999999997e-05, 0.00011999999999999999, 0.00020999999999999998, 0.00029999999999999997,
               0.00029999999999999997, 0.00029999999999999997, 0.00029999999999999997, 0.00029999999999999997,
               0.00029999999999999997, 0.00023249999999999999, 0.000165, 9.7499999999999998e-05, 2.9999999999999997e-05,
               2.9999999999999997e-05}},
    {.schedule = LearningRateSchedule::wsd,
     .warmup = 3,
     .minimum = 0.0,
     .steps = 12,
     .decay_steps = 4,
     .decay_type = DecayType::cosine,
     .rates = {0, 9.9999999999999991e-05, 0.00019999999999999998, 0.00029999999999999997, 0.00029999999999999997,
               0.00029999999999999997, 0.00029999999999999997, 0.00029999999999999997, 0.00029999999999999997,
               0.00025606601717798207, 0.00014999999999999999, 4.3933982822017876e-05, 0, 0}},
    {.schedule = LearningRateSchedule::wsd,
     .warmup = 3,
     .minimum = 3e-5,
     .steps = 12,
     .decay_steps = 4,
     .decay_type = DecayType::cosine,
     .rates = {2.9999999999999997e-05, 0.00011999999999999999, 0.00020999999999999998, 0.00029999999999999997,
               0.00029999999999999997, 0.00029999999999999997, 0.00029999999999999997, 0.00029999999999999997,
               0.00029999999999999997, 0.00026045941546018388, 0.000165, 6.9540584539816089e-05, 2.9999999999999997e-05,
               2.9999999999999997e-05}},
    {.schedule = LearningRateSchedule::wsd,
     .warmup = 3,
     .minimum = 0.0,
     .steps = 12,
     .decay_steps = 4,
     .decay_type = DecayType::one_minus_sqrt,
     .rates = {0, 9.9999999999999991e-05, 0.00019999999999999998, 0.00029999999999999997, 0.00029999999999999997,
               0.00029999999999999997, 0.00029999999999999997, 0.00029999999999999997, 0.00029999999999999997,
               0.00014999999999999999, 8.7867965644035725e-05, 4.0192378864668415e-05, 0, 0}},
    {.schedule = LearningRateSchedule::wsd,
     .warmup = 3,
     .minimum = 3e-5,
     .steps = 12,
     .decay_steps = 4,
     .decay_type = DecayType::one_minus_sqrt,
     .rates = {2.9999999999999997e-05, 0.00011999999999999999, 0.00020999999999999998, 0.00029999999999999997,
               0.00029999999999999997, 0.00029999999999999997, 0.00029999999999999997, 0.00029999999999999997,
               0.00029999999999999997, 0.000165, 0.00010908116907963214, 6.617314097820157e-05, 2.9999999999999997e-05,
               2.9999999999999997e-05}},
    {.schedule = LearningRateSchedule::inverse_sqrt,
     .warmup = 4,
     .steps = 12,
     .rates = {0, 7.4999999999999993e-05, 0.00014999999999999999, 0.00022499999999999999, 0.00029999999999999997,
               0.00026832815729997472, 0.00024494897427831784, 0.0002267786838055363, 0.00021213203435596422,
               0.00019999999999999998, 0.00018973665961010276, 0.00018090680674665816}},
    {.schedule = LearningRateSchedule::inverse_sqrt,
     .steps = 12,
     .rates = {0.00029999999999999997, 0.00029998500112490627, 0.00029997000449925014, 0.0002999550101224694,
               0.00029994001799400213, 0.00029992502811328632, 0.00029991004047976057, 0.00029989505509286343,
               0.00029988007195203356, 0.00029986509105671004, 0.00029985011240633191, 0.00029983513600033874}},
    {.schedule = LearningRateSchedule::polynomial,
     .warmup = 0,
     .minimum = 1e-7,
     .steps = 12,
     .power = 1.0,
     .rates = {0.00029999999999999997, 0.0002750083333333333, 0.00025001666666666668, 0.00022502499999999998,
               0.00020003333333333333, 0.00017504166666666663, 0.00015004999999999999, 0.00012505833333333331,
               0.00010006666666666667, 7.5074999999999995e-05, 5.0083333333333322e-05, 2.5091666666666676e-05,
               9.9999999999999982e-08, 9.9999999999999982e-08}},
    {.schedule = LearningRateSchedule::polynomial,
     .warmup = 4,
     .minimum = 0.0,
     .steps = 12,
     .power = 2.0,
     .rates = {0, 7.4999999999999993e-05, 0.00014999999999999999, 0.00022499999999999999, 0.00029999999999999997,
               0.00022968749999999999, 0.00016874999999999998, 0.0001171875, 7.4999999999999993e-05,
               4.2187499999999995e-05, 1.8749999999999998e-05, 4.6874999999999996e-06, 0, 0}},
    {.schedule = LearningRateSchedule::polynomial,
     .warmup = 4,
     .minimum = 3e-5,
     .steps = 12,
     .power = 0.5,
     .rates = {0, 7.4999999999999993e-05, 0.00014999999999999999, 0.00022499999999999999, 0.00029999999999999997,
               0.00028256187360724104, 0.0002638268590217984, 0.00024345374206136556, 0.00022091883092036782,
               0.00019534055763786447, 0.00016499999999999997, 0.00012545941546018391, 2.9999999999999997e-05,
               2.9999999999999997e-05}},
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
  for (const LaterTable& table : kLaterTables) {
    const LearningRatePlan plan{.learning_rate = 3e-4,
                                .schedule = table.schedule,
                                .warmup_steps = table.warmup,
                                .decay_steps = table.decay_steps,
                                .decay_type = table.decay_type,
                                .power = table.power,
                                .minimum_learning_rate = table.minimum,
                                .steps = table.steps};
    for (std::size_t i = 0; i < table.rates.size(); ++i) {
      EXPECT_NEAR(learning_rate(plan, static_cast<std::int64_t>(i) + 1), table.rates[i], 1e-18)
          << static_cast<int>(table.schedule) << ' ' << static_cast<int>(table.decay_type) << " at " << i;
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
  plan.schedule = LearningRateSchedule::polynomial;  // without steps after the warm-up
  plan.warmup_steps = plan.steps;
  EXPECT_EQ(learning_rate(plan, 5), 1.0);
  EXPECT_EQ(learning_rate(plan, 6), 0.25);
  plan.schedule = LearningRateSchedule::wsd;  // without a decay
  EXPECT_EQ(learning_rate(plan, 1), 0.25);
  EXPECT_EQ(learning_rate(plan, 5), 1.0);
  plan = {.learning_rate = 1.0,
          .schedule = LearningRateSchedule::wsd,
          .warmup_steps = 2,
          .decay_steps = 2,
          .decay_type = DecayType::linear,
          .steps = 4};  // without a constant part
  EXPECT_EQ(learning_rate(plan, 3), 1.0);
  EXPECT_EQ(learning_rate(plan, 4), 0.5);
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

// The runs of two parameters with and without decay: the second matrix begins in the second run.
TEST(AdamW, RecordsTheAmaxOfEachMatrixInAnyRun) {
  const nn::Initial zeros;
  const nn::Flat flat("flat", {},
                      {nn::full_param("a", {2, 64}, zeros, true), nn::full_param("b", {2, 64}, zeros, false)});
  const auto device = make_cpu_device();
  const auto stream = device->make_stream("compute");
  const auto filled = [&](std::int64_t count, float value, DType dtype = DType::f32) {
    Storage out(*device, dtype, {count});
    if (dtype == DType::f32) std::fill_n(out.view().data<float>(), count, value);
    if (dtype == DType::i32) std::fill_n(out.view().data<std::int32_t>(), count, 0);
    return out;
  };
  const std::int64_t count = flat.total(1);
  const auto optimizer = make_adamw({.weight_decay = 0.5});
  const Storage weights = filled(count, 1), gradient = filled(count, 0), first = filled(count, 0),
                second = filled(count, 0), scalars = filled(optimizer->scalars(), 0), rate = filled(kGroups, 0.25f),
                amax = filled(2, 0), coefficient = filled(1, 1), skip = filled(1, 0, DType::i32),
                step = filled(1, 0, DType::i32);
  weights.view().data<float>()[flat.offset(0)] = 8;  // decays
  weights.view().data<float>()[flat.offset(1) + 5] = -4;
  step.view().data<std::int32_t>()[0] = 1;
  optimizer->prepare(*stream, {.learning_rate = rate, .step = step, .scalars = scalars});
  const std::vector<TensorView> slots = {first, second};
  const std::vector<ops::EqualMatrices> measured = {{.begin = flat.offset(0), .size = 128, .count = 1, .first = 0},
                                                    {.begin = flat.offset(1), .size = 128, .count = 1, .first = 1}};
  optimizer->update(*stream, {.flat = flat,
                              .begin = 0,
                              .count = count,
                              .weights = weights,
                              .gradient = gradient,
                              .slots = slots,
                              .scalars = scalars,
                              .amax = amax,
                              .measured = measured,
                              .coefficient = coefficient,
                              .skip = skip,
                              .step = step});
  stream->synchronize();
  EXPECT_FLOAT_EQ(amax.view().data<float>()[0], 8 * (1 - 0.25f * 0.5f));
  EXPECT_EQ(amax.view().data<float>()[1], 4);
}

}  // namespace optim_test
}  // namespace hawser::optim
