#include "train/power_watch.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/testing/test_paths.h"
#include "device/testing/bus_device.h"

namespace hawser::train {
namespace power_watch_test {

TEST(PowerWatch, MeasuresTheGpuOfTheRun) {
  using Clock = std::chrono::steady_clock;
  const PowerWatch watch(BusDevice("0000:43:00.0"), nullptr, testing::kFakeNvml);
  const Clock::time_point begin = Clock::now();
  PowerUse use;
  while (!use.sm_clock_mhz && seconds_since(begin) < 20) use = watch.between(begin, Clock::now());
  EXPECT_EQ(use.gpus, 1);
  EXPECT_TRUE(use.sm_clock_mhz);
}

TEST(PowerWatch, MeasuresNothingWithoutAGpu) {
  const auto cpu = make_cpu_device();
  const auto now = std::chrono::steady_clock::now();
  EXPECT_EQ(PowerWatch(*cpu, nullptr, testing::kFakeNvml).between(now, now).gpus, 0);
  EXPECT_EQ(PowerWatch(BusDevice("0000:43:00.0"), nullptr, "libno-nvml.so").between(now, now).gpus, 0);
}

TEST(PowerWatch, JoulesAreThoseOfAllRanks) {
  report::StepMetrics metrics{.tokens_per_second = 20'000};
  add_power(metrics, {.seconds = 2, .gpus = 2, .joules = 2600.0, .watts = 650.0, .sm_clock_mhz = 1545.0}, 4);
  EXPECT_EQ(metrics.gpu_watts, 650.0);
  EXPECT_EQ(metrics.sm_clock_mhz, 1545.0);
  EXPECT_EQ(metrics.joules_per_token, 4 * 650.0 / 20'000);
  report::StepMetrics none{.tokens_per_second = 20'000};
  add_power(none, {}, 4);
  EXPECT_FALSE(none.gpu_watts || none.sm_clock_mhz || none.joules_per_token);
}

}  // namespace power_watch_test
}  // namespace hawser::train
