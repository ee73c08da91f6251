// Two ranks on one machine, each with a GPU of a fake NVML.
#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/testing/test_paths.h"
#include "device/testing/bus_device.h"
#include "profile/step_power.h"
#include "train/power_watch.h"

namespace hawser {
namespace power_ranks_test {

using Clock = std::chrono::steady_clock;

comm::World* the_world = nullptr;

bool first() {
  return the_world->rank().value() == 0;
}

std::string own_bus_id() {
  return first() ? "0000:1B:00.0" : "0000:43:00.0";
}

TEST(PowerOfRanks, IsSummedOnEveryRank) {
  const PowerUse mine = first() ? PowerUse{.seconds = 2, .gpus = 1, .joules = 1400.0, .watts = 700.0}
                                : PowerUse{.seconds = 2, .gpus = 1, .joules = 1200.0, .watts = 600.0};
  const PowerUse all = profile::over_ranks(mine, the_world);
  EXPECT_EQ(all.gpus, 2);
  EXPECT_EQ(all.joules, 2600.0);
  EXPECT_EQ(all.watts, 650.0);
}

TEST(PowerOfRanks, IsMeasuredByTheFirstInTraining) {
  const train::PowerWatch watch(BusDevice(own_bus_id()), the_world, testing::kFakeNvml);
  const Clock::time_point begin = Clock::now();
  PowerUse use;
  while (first() && use.gpus < 2 && seconds_since(begin) < 20) use = watch.between(begin, Clock::now());
  EXPECT_EQ(use.gpus, first() ? 2 : 0);
  EXPECT_EQ(watch.between(begin, Clock::now()).gpus, first() ? 2 : 0);
}

}  // namespace power_ranks_test
}  // namespace hawser

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  hawser::comm::World world(60.0);
  hawser::power_ranks_test::the_world = &world;
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (world.rank().value() != 0) delete listeners.Release(listeners.default_result_printer());
  const bool failed = RUN_ALL_TESTS() != 0;
  return world.any(failed) ? 1 : 0;
}
