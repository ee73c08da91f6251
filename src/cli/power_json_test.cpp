#include "cli/power_json.h"

#include <gtest/gtest.h>

namespace hawser::cli {
namespace power_json_test {

profile::StepPower two_gpus() {
  return {.use = {.seconds = 8,
                  .gpus = 2,
                  .joules = 11'200.0,
                  .watts = 700.0,
                  .sm_clock_mhz = 1545.4,
                  .min_sm_clock_mhz = 1410.0,
                  .clock_reasons = {{{"sw_power_cap", 0.98}, {"sync_boost", 0.5}}}},
          .steps = 5,
          .tokens_per_step = 32'000};
}

std::string table(const profile::StepPower& power) {
  std::string text;
  for (const auto& [name, value] : power_rows(power)) text += std::string(name) + ": " + value + "\n";
  return text;
}

TEST(PowerJson, HasTheFiguresOfAStep) {
  EXPECT_EQ(power_json(two_gpus()).dump(),
            R"({"gpus":2,"joules_per_step":2240.0,"joules_per_token":0.07,"watts_per_gpu":700.0,)"
            R"("sm_clock_mhz":1545.4,"min_sm_clock_mhz":1410.0,)"
            R"("clock_reasons":{"sw_power_cap":0.98,"sync_boost":0.5}})");
}

TEST(PowerJson, LeavesOutWhatIsNotReported) {
  profile::StepPower power = two_gpus();
  power.use.joules.reset();
  power.use.watts.reset();
  power.use.clock_reasons->clear();
  EXPECT_EQ(power_json(power).dump(),
            R"({"gpus":2,"sm_clock_mhz":1545.4,"min_sm_clock_mhz":1410.0,"clock_reasons":{}})");
  EXPECT_EQ(table(power),
            "SM clock: 1545 MHz, mean; minimum 1410\n"
            "clock limited by: nothing\n");
  power.use.clock_reasons.reset();
  power.use.sm_clock_mhz.reset();
  EXPECT_EQ(table(power), "");
  EXPECT_TRUE(power_json({.steps = 5, .tokens_per_step = 32'000}).is_null());  // no GPU
  EXPECT_EQ(table({.steps = 5, .tokens_per_step = 32'000}), "");
}

TEST(PowerJson, IsATable) {
  EXPECT_EQ(table(two_gpus()),
            "energy: 2240.0 J per step, 0.07 J per token, of all GPUs\n"
            "power: 700 W per GPU, mean\n"
            "SM clock: 1545 MHz, mean; minimum 1410\n"
            "clock limited by: sw_power_cap 98 %, sync_boost 50 % of the time\n");
}

}  // namespace power_json_test
}  // namespace hawser::cli
