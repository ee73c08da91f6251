#include "profile/step_power.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace hawser::profile {
namespace step_power_test {

PowerUse some_use() {
  return {.seconds = 8,
          .gpus = 2,
          .joules = 11'200.0,
          .watts = 700.0,
          .sm_clock_mhz = 1545.0,
          .min_sm_clock_mhz = 1410.0,
          .clock_reasons = {{{"sw_power_cap", 0.98}, {"sync_boost", 0.5}}}};
}

TEST(StepPower, IsPerStepAndPerToken) {
  StepPower power{.use = some_use(), .steps = 5, .tokens_per_step = 32'768};
  EXPECT_EQ(power.joules_per_step(), 2240.0);
  EXPECT_EQ(power.joules_per_token(), 2240.0 / 32'768);
  power.use.joules.reset();
  EXPECT_EQ(power.joules_per_step(), std::nullopt);
  EXPECT_EQ(power.joules_per_token(), std::nullopt);
}

TEST(StepPower, OfARankIsSentAsText) {
  EXPECT_EQ(to_json(some_use()),
            R"({"gpus":2,"seconds":8.0,"joules":11200.0,"watts":700.0,"sm_clock_mhz":1545.0,)"
            R"("min_sm_clock_mhz":1410.0,"clock_reasons":{"sw_power_cap":0.98,"sync_boost":0.5}})");
  const PowerUse back = power_use_from_json(to_json(some_use()));
  EXPECT_EQ(back.gpus, 2);
  EXPECT_EQ(back.seconds, 8);
  EXPECT_EQ(back.joules, 11'200.0);
  EXPECT_EQ(back.watts, 700.0);
  EXPECT_EQ(back.sm_clock_mhz, 1545.0);
  EXPECT_EQ(back.min_sm_clock_mhz, 1410.0);
  EXPECT_EQ(back.clock_reasons, some_use().clock_reasons);
  const PowerUse none = power_use_from_json(to_json({}));  // absent is not zero
  EXPECT_FALSE(none.joules || none.watts || none.sm_clock_mhz || none.min_sm_clock_mhz || none.clock_reasons);
  EXPECT_THROW(power_use_from_json("{}"), InternalError);
  EXPECT_EQ(over_ranks(some_use(), nullptr).joules, 11'200.0);
}

TEST(StepPower, HasCountersForATrace) {
  std::vector<PowerSample> samples(3);
  for (std::size_t i = 0; i < 3; ++i) {
    samples[i].real_ns = 100 + 20 * static_cast<std::int64_t>(i);
    samples[i].sm_clock_mhz = 1500.0 + static_cast<double>(i);
  }
  std::vector<TimelineCounter> counters = counters_of(samples, 110);
  ASSERT_EQ(counters.size(), 1u);  // no sample has watts
  EXPECT_EQ(counters[0].name, "SM clock");
  ASSERT_EQ(counters[0].points.size(), 3u);
  EXPECT_EQ(counters[0].points[0].at, 110);
  EXPECT_EQ(counters[0].points[2].at, 140);
  EXPECT_EQ(counters[0].points[2].value, 1502);
  samples[1].watts = 650;
  counters = counters_of(samples, 110);
  ASSERT_EQ(counters.size(), 2u);
  EXPECT_EQ(counters[0].name, "power");
  EXPECT_EQ(counters[0].unit, "W");
  EXPECT_EQ(counters[0].points.size(), 1u);
}

}  // namespace step_power_test
}  // namespace hawser::profile
