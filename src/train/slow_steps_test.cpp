#include "train/slow_steps.h"

#include <gtest/gtest.h>

#include "base/cat.h"

namespace hawser::train {
namespace slow_steps_test {

constexpr SlowStepsOptions run(double predicted, std::int64_t steps) {
  return {.predicted = predicted, .steps = steps, .own_threads = 2, .prediction_of = "a core of an AMD EPYC"};
}

// What is said in steps that take these seconds, the first two of which start up.
std::string said(const SlowStepsOptions& options, double seconds, const Circumstances& seen) {
  SlowSteps slow(options);
  std::string out;
  for (int step = 0; step < 30; ++step) {
    const auto text = slow.step(step < 2 ? 100.0 : seconds, [&] { return seen; });
    if (text) out += cat(out.empty() ? "" : "\n", step + 1, " ", *text);
  }
  return out;
}

TEST(SlowSteps, AreSaidOnceWithWhatWasSeen) {
  EXPECT_EQ(
      said(run(1.0, 100), 3.0, {.load = 7.8, .cores = 2}),
      "12 steps take 3.00 s, 3.0 times the predicted 1.00 s: other processes compute here (load 7.8 on 2 cores, 2 "
      "threads of this run)");
  EXPECT_EQ(
      said(run(1.0, 100), 3.0, {.load = 2.1, .cores = 2}),
      "12 steps take 3.00 s, 3.0 times the predicted 1.00 s: no other load, no limit of a clock and no slow kernel was "
      "seen; the prediction is for a core of an AMD EPYC, and `hawser bench step` shows what takes the time");
}

TEST(SlowSteps, NameClocksKernelsAndLinks) {
  SlowStepsOptions options = run(0.1, 10000);
  options.communication = 0.05;
  const PowerUse power{.sm_clock_mhz = 1230, .clock_reasons = {{{"sw_thermal_slowdown", 0.8}}}};
  EXPECT_EQ(
      said(options, 0.5, {.load = 1.0, .cores = 16, .power = power, .slow_kernels = {"GEMM a", "GEMM b"}}),
      "12 steps take 500 ms, 5.0 times the predicted 100 ms: the GPUs' SM clock is 1230 MHz, limited by "
      "sw_thermal_slowdown in 80% of samples; slow kernel: GEMM a; slow kernel: GEMM b; collectives are predicted "
      "to take 50 ms of a step, and the links may be slower: `hawser bench step` times them");
}

TEST(SlowSteps, AreNotSaidNearThePredictionOrInAShortRun) {
  EXPECT_EQ(said(run(1.0, 1000), 1.9, {.load = 50.0}), "");
  EXPECT_EQ(said(run(0.001, 1000), 0.05, {.load = 50.0}), "");  // 49 s longer
  EXPECT_NE(said(run(0.001, 2000), 0.05, {.load = 50.0}), "");
  EXPECT_EQ(said(run(0, 1000), 5.0, {.load = 50.0}), "");  // no prediction
}

}  // namespace slow_steps_test
}  // namespace hawser::train
