#include "ops/gemm/gemm_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace hawser::ops {
namespace gemm_choice_test {

// A GPU under a power cap: its clock moves towards cap / power with a time constant of 100 ms.
class CappedGpu {
 public:
  struct Algorithm {
    double ms = 1;     // at full clock
    double power = 1;  // at full clock
  };

  explicit CappedGpu(std::vector<Algorithm> algorithms) : algorithms_(std::move(algorithms)) {}

  GemmTimer timer() {
    return {.once =
                [this](std::size_t i) {
                  clock_ += (1 - clock_) * 0.05;  // pauses of the host between runs
                  return run(i, 1);
                },
            .sustained =
                [this](std::size_t i, int settle, int runs) {
                  run(i, settle);
                  return run(i, runs);
                }};
  }
  double total_ms() const { return total_ms_; }

 private:
  // Mean of a run.
  float run(std::size_t i, int runs) {
    const Algorithm& algorithm = algorithms_[i];
    double sum = 0;
    for (int r = 0; r < runs; ++r) {
      const double ms = algorithm.ms / clock_;
      const double target = std::min(1.0, kCap / algorithm.power);
      clock_ += (target - clock_) * (1 - std::exp(-ms / 100));
      sum += ms;
    }
    total_ms_ += sum;
    return static_cast<float>(sum / runs);
  }

  static constexpr double kCap = 0.85;
  std::vector<Algorithm> algorithms_;
  double clock_ = 1, total_ms_ = 0;
};

TEST(ChooseGemm, TakesTheFastestAtTheClockOfSustainedLoad) {
  // The second is the fastest at any one clock. Alone it draws more power, and its lower clock makes it slower.
  CappedGpu gpu({{1.0, 1.0}, {0.96, 1.1}, {0.985, 1.0}, {1.02, 1.0}});
  EXPECT_EQ(choose_gemm(4, gpu.timer()), 2u);
  EXPECT_LT(gpu.total_ms(), 3000);
}

TEST(ChooseGemm, KeepsTheFirstUnlessAnotherWinsByAMargin) {
  EXPECT_EQ(choose_gemm(3, CappedGpu({{1.0, 1.0}, {0.998, 1.0}, {1.01, 0.99}}).timer()), 0u);
  EXPECT_EQ(choose_gemm(1, CappedGpu({{1.0, 1.0}}).timer()), 0u);
}

TEST(ChooseGemm, ComparesShortOnesBySingleRuns) {
  CappedGpu gpu({{0.1, 1.0}, {0.09, 1.1}, {0.095, 1.0}});
  GemmTimer timer = gpu.timer();
  timer.sustained = [](std::size_t, int, int) -> float {
    ADD_FAILURE();
    return 1;
  };
  EXPECT_EQ(choose_gemm(3, timer), 1u);
}

TEST(ChooseGemm, LeavesOutWhatCannotRun) {
  CappedGpu gpu({{1.0, 1.0}, {0.9, 1.0}, {0.95, 1.0}});
  GemmTimer timer = gpu.timer();
  timer.once = [once = timer.once](std::size_t i) { return i == 1 ? kRejectedGemm : once(i); };
  timer.sustained = [run = timer.sustained](std::size_t i, int settle, int runs) {
    return i == 1 ? kRejectedGemm : run(i, settle, runs);
  };
  EXPECT_EQ(choose_gemm(3, timer), 2u);
}

}  // namespace gemm_choice_test
}  // namespace hawser::ops
