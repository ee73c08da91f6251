#include "device/power_meter.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "base/clock.h"
#include "base/testing/test_paths.h"
#include "device/device.h"

namespace hawser {
namespace power_meter_test {

using Clock = PowerMeter::Clock;
using std::chrono::milliseconds;

// The fake library's own functions. Loading it again, as NvmlGpu does, gives the same one.
class FakeNvml {
 public:
  explicit FakeNvml(const char* path = testing::kFakeNvml) : library_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) throw std::runtime_error(dlerror());
  }
  ~FakeNvml() { dlclose(library_); }
  FakeNvml(const FakeNvml&) = delete;
  FakeNvml& operator=(const FakeNvml&) = delete;

  void set(int gpu, const char* what, unsigned long long value) const {
    reinterpret_cast<void (*)(int, const char*, unsigned long long)>(dlsym(library_, "fake_nvml_set"))(gpu, what,
                                                                                                       value);
  }
  int initialised() const { return reinterpret_cast<int (*)()>(dlsym(library_, "fake_nvml_initialised"))(); }

 private:
  void* library_;
};

TEST(NvmlGpu, IsFoundByItsBusId) {
  const FakeNvml fake;
  fake.set(0, "clock_mhz", 1980);
  fake.set(1, "clock_mhz", 1545);
  fake.set(1, "power_mw", 699'500);
  fake.set(1, "reasons", 0x4);
  fake.set(1, "energy_of_a_call", 35'000);
  const auto gpu = NvmlGpu::open("0000:43:00.0", testing::kFakeNvml);
  ASSERT_NE(gpu, nullptr);
  EXPECT_EQ(gpu->sm_clock_mhz(), 1545.0);
  EXPECT_EQ(gpu->watts(), 699.5);
  EXPECT_EQ(gpu->clock_reasons(), 0x4u);
  EXPECT_EQ(gpu->energy_mj(), 1'035'000u);
  EXPECT_EQ(gpu->energy_mj(), 1'070'000u);
  EXPECT_EQ(NvmlGpu::open("0000:1B:00.0", testing::kFakeNvml)->sm_clock_mhz(), 1980.0);
}

TEST(NvmlGpu, IsAbsentWithoutTheLibraryOrTheGpu) {
  const FakeNvml fake;
  EXPECT_EQ(NvmlGpu::open("0000:1B:00.0", "libno-such-nvml.so.1"), nullptr);
  EXPECT_EQ(NvmlGpu::open("0000:99:00.0", testing::kFakeNvml), nullptr);
  EXPECT_EQ(NvmlGpu::open(make_cpu_device()->bus_id(), testing::kFakeNvml), nullptr);
  EXPECT_EQ(NvmlGpu::open("0000:1B:00.0", "libm.so.6"), nullptr);  // a library without its functions
  EXPECT_EQ(fake.initialised(), 0);
}

TEST(NvmlGpu, LeavesOutWhatTheDriverDoesNotReport) {
  const FakeNvml fake(testing::kOldNvml);
  fake.set(0, "power_mw", 600'000);
  fake.set(0, "reasons", 0x40);
  fake.set(0, "has_clock", 0);
  const auto gpu = NvmlGpu::open("0000:1B:00.0", testing::kOldNvml);
  ASSERT_NE(gpu, nullptr);
  EXPECT_EQ(gpu->energy_mj(), std::nullopt);
  EXPECT_EQ(gpu->sm_clock_mhz(), std::nullopt);
  EXPECT_EQ(gpu->watts(), 300.0);          // the mean of the last second
  EXPECT_EQ(gpu->clock_reasons(), 0x40u);  // by the former name
}

TEST(NvmlGpu, NamesTheClockReasons) {
  EXPECT_EQ(clock_reason_names(0x1), std::vector<std::string>());
  EXPECT_EQ(clock_reason_names(0x4 | 0x40), (std::vector<std::string>{"sw_power_cap", "hw_thermal_slowdown"}));
  EXPECT_EQ(clock_reason_names(0x1000), std::vector<std::string>{"other"});
}

// Samples every 20 ms from 0 s on of a counter that moves every 100 ms, under `watts` in each tenth of a second.
std::deque<PowerSample> sampled(Clock::time_point start, const std::vector<double>& watts) {
  std::deque<PowerSample> out;
  double mj = 5e9;
  for (std::size_t tenth = 0; tenth < watts.size(); ++tenth) {
    for (int i = 0; i < 5; ++i) {
      out.push_back({.at = start + milliseconds(100 * tenth + 20 * static_cast<std::size_t>(i)),
                     .energy_mj = static_cast<std::uint64_t>(mj)});
    }
    mj += 100 * watts[tenth];
  }
  return out;
}

TEST(PowerUse, IsOfTheIntervalAlone) {
  const Clock::time_point start = Clock::now();
  std::vector<double> watts(40, 100.0);  // idle, but from 1.05 s to 2.95 s
  for (std::size_t i = 11; i < 29; ++i) watts[i] = 700;
  watts[10] = watts[29] = 400;
  const PowerUse use = power_between(sampled(start, watts), start + milliseconds(1050), start + milliseconds(2950));
  ASSERT_TRUE(use.watts && use.joules);
  EXPECT_NEAR(*use.watts, 700, 1e-6);
  EXPECT_NEAR(*use.joules, 700 * 1.9, 1e-6);
  EXPECT_NEAR(use.seconds, 1.9, 1e-9);
  EXPECT_EQ(use.gpus, 1);
}

TEST(PowerUse, OfAShortIntervalIsThatOfTheMovesAroundIt) {
  const Clock::time_point start = Clock::now();
  const std::deque<PowerSample> samples = sampled(start, std::vector<double>(20, 400.0));
  const PowerUse use = power_between(samples, start + milliseconds(1020), start + milliseconds(1050));
  ASSERT_TRUE(use.watts && use.joules);
  EXPECT_NEAR(*use.watts, 400, 1e-6);
  EXPECT_NEAR(*use.joules, 12, 1e-6);
  // At the end of the samples, and where there are none.
  EXPECT_NEAR(power_between(samples, start + milliseconds(1950), start + milliseconds(1990)).watts.value(), 400, 1e-6);
  EXPECT_EQ(power_between(samples, start + milliseconds(9000), start + milliseconds(9900)).watts, std::nullopt);
}

TEST(PowerUse, CountsClocksAndReasonsOfItsSamples) {
  const Clock::time_point start = Clock::now();
  std::deque<PowerSample> samples;
  const double clocks[] = {1980, 1600, 1500, 1550, 1980};
  for (int i = 0; i < 5; ++i) {
    samples.push_back({.at = start + milliseconds(20 * i),
                       .sm_clock_mhz = clocks[i],
                       .reasons = i == 0 || i == 4 ? 0x1 : (i == 2 ? 0x24 : 0x4)});
  }
  PowerUse use = power_between(samples, start + milliseconds(15), start + milliseconds(65));
  EXPECT_EQ(use.sm_clock_mhz, 1550.0);
  EXPECT_EQ(use.min_sm_clock_mhz, 1500.0);
  ASSERT_TRUE(use.clock_reasons);
  EXPECT_EQ(use.clock_reasons->size(), 2u);
  EXPECT_EQ(use.clock_reasons->at("sw_power_cap"), 1.0);
  EXPECT_NEAR(use.clock_reasons->at("sw_thermal_slowdown"), 1.0 / 3, 1e-9);
  EXPECT_EQ(use.watts, std::nullopt);
  // Between two samples, the one before.
  use = power_between(samples, start + milliseconds(41), start + milliseconds(49));
  EXPECT_EQ(use.sm_clock_mhz, 1500.0);
}

TEST(PowerUse, OfRanksSumsJoulesAndMeansTheRest) {
  const PowerUse one{.seconds = 2,
                     .gpus = 1,
                     .joules = 1400.0,
                     .watts = 700.0,
                     .sm_clock_mhz = 1500.0,
                     .min_sm_clock_mhz = 1400.0,
                     .clock_reasons = {{{"sw_power_cap", 1.0}}}};
  PowerUse other{.seconds = 2, .gpus = 1, .joules = 1200.0, .watts = 600.0, .sm_clock_mhz = 1700.0};
  other.clock_reasons.emplace();
  PowerUse all = combined({one, {}, other});
  EXPECT_EQ(all.gpus, 2);
  EXPECT_EQ(all.joules, 2600.0);
  EXPECT_EQ(all.watts, 650.0);
  EXPECT_EQ(all.sm_clock_mhz, 1600.0);
  EXPECT_EQ(all.min_sm_clock_mhz, 1400.0);
  EXPECT_EQ(all.clock_reasons->at("sw_power_cap"), 0.5);
  other.joules.reset();  // a sum of some would look like one of all
  all = combined({one, other});
  EXPECT_EQ(all.joules, std::nullopt);
  EXPECT_EQ(all.watts, std::nullopt);
  EXPECT_EQ(combined({}).gpus, 0);
}

TEST(PowerMeter, SamplesOnAThreadOfItsOwn) {
  const FakeNvml fake;
  fake.set(0, "energy_of_a_call", 7);
  fake.set(0, "clock_mhz", 1545);
  fake.set(0, "power_mw", 650'000);
  fake.set(0, "reasons", 0x4);
  {
    const Clock::time_point begin = Clock::now();
    const PowerMeter meter(NvmlGpu::open("0000:1B:00.0", testing::kFakeNvml), milliseconds(1));
    PowerUse use;
    // A sample after the end of the interval gives joules, but no clock.
    const auto complete = [&] { return use.joules && use.clock_reasons; };
    while (!complete() && seconds_since(begin) < 20) use = meter.between(begin, Clock::now());
    EXPECT_TRUE(use.joules);
    EXPECT_EQ(use.sm_clock_mhz, 1545.0);
    ASSERT_TRUE(use.clock_reasons);
    EXPECT_EQ(use.clock_reasons->at("sw_power_cap"), 1.0);
    const std::vector<PowerSample> samples = meter.samples(begin, Clock::now());
    ASSERT_GE(samples.size(), 2u);
    EXPECT_EQ(samples[0].watts, 650.0);
    EXPECT_GT(samples[1].real_ns, samples[0].real_ns);
    EXPECT_EQ(fake.initialised(), 1);
  }
  EXPECT_EQ(fake.initialised(), 0);
}

TEST(PowerMeter, WithoutAGpuHasNoFigures) {
  const PowerMeter meter(nullptr);
  const Clock::time_point begin = Clock::now();
  const PowerUse use = meter.between(begin - milliseconds(500), begin);
  EXPECT_EQ(use.gpus, 0);
  EXPECT_FALSE(use.joules || use.watts || use.sm_clock_mhz || use.clock_reasons);
}

}  // namespace power_meter_test
}  // namespace hawser
