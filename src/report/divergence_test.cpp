#include "report/divergence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/testing/test_paths.h"
#include "report/metrics_file.h"

namespace hawser::report {
namespace divergence_test {

const double kUniform = std::log(49152.0);

// The step at which training diverges first; 0: it never does. Losses of steps 1, 2, ...
std::int64_t diverges_at(Divergence& divergence, const std::vector<double>& losses, std::int64_t targets = 510) {
  std::int64_t at = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    const auto text = divergence.step(losses[i], targets);
    if (text && at == 0) at = static_cast<std::int64_t>(i) + 1;
    EXPECT_TRUE(!text || text->find("try ") != std::string::npos) << *text;
  }
  return at;
}

// The losses of real runs of a small Qwen3 from random weights, without warm-up at a learning rate of 10, and with five
// steps of it at 3 and 1.
const std::vector<double> kRate10 = {10.84,   12376.14, 5523.16, 5505.03, 4985.54, 3800.53,
                                     4164.40, 4008.97,  3211.85, 2247.75, 2169.06, 1874.36};
const std::vector<double> kRate3 = {10.84,  10.83,  35.73,  163.98, 104.71, 269.93, 384.84, 824.20, 1066.04, 845.84,
                                    896.83, 1225.4, 761.93, 988.36, 473.35, 303.01, 155.68, 103.01, 43.43,   24.26};
const std::vector<double> kRate1 = {10.84, 10.83, 9.88,  55.95, 31.39, 47.66, 60.00, 84.74, 130.0, 124.9,
                                    67.30, 39.53, 20.10, 10.57, 9.47,  8.94,  8.57,  8.03,  7.98,  7.82,
                                    7.55,  7.83,  8.34,  7.67,  7.67,  7.6,   7.6,   7.6};

TEST(Divergence, IsFoundInRunsWithMuchTooHighLearningRates) {
  Divergence ten({.steps = 12, .uniform_loss = kUniform}), three({.steps = 60, .uniform_loss = kUniform});
  EXPECT_EQ(diverges_at(ten, kRate10), 2);
  EXPECT_TRUE(ten.now());
  EXPECT_EQ(diverges_at(three, kRate3), 3);
  EXPECT_TRUE(three.now());
}

TEST(Divergence, EndsWhenTheModelIsBetterThanAtTheStart) {
  Divergence one({.steps = 60, .uniform_loss = kUniform});
  one.validated(0, 10.89);
  EXPECT_EQ(diverges_at(one, kRate1), 4);
  EXPECT_FALSE(one.now());
  Divergence validates({.steps = 60, .uniform_loss = kUniform});
  validates.validated(0, 10.89);
  EXPECT_EQ(diverges_at(validates, {kRate1.begin(), kRate1.begin() + 10}), 4);
  EXPECT_EQ(validates.validated(10, 130), std::nullopt) << "it has diverged already";
  EXPECT_EQ(diverges_at(validates, {kRate1.begin() + 10, kRate1.end()}), 0);
  EXPECT_TRUE(validates.now()) << "the last validation loss is high";
  validates.validated(28, 7.8);
  validates.step(7.6, 510);
  EXPECT_FALSE(validates.now());
}

// Losses of a tuned model rise from 2 to 4 nats, far below those of a uniform guess.
TEST(Divergence, IsFoundBelowTheLossOfAUniformGuess) {
  std::mt19937_64 random(1);
  std::normal_distribution<double> noise(0, 0.2);
  std::vector<double> losses;
  for (int step = 1; step <= 100; ++step) losses.push_back((step < 50 ? 2.0 : 4.0) + noise(random));
  Divergence divergence({.steps = 100, .uniform_loss = kUniform});
  const std::int64_t at = diverges_at(divergence, losses);
  EXPECT_GT(at, 50);
  EXPECT_LT(at, 70);
  EXPECT_TRUE(divergence.now());
}

TEST(Divergence, OfTheValidationLossIsNotOverfitting) {
  Divergence diverges({.steps = 100, .uniform_loss = kUniform}), overfits({.steps = 100, .uniform_loss = kUniform});
  for (Divergence* each : {&diverges, &overfits}) each->validated(0, 3.0);
  for (int step = 1; step <= 40; ++step) {
    diverges.step(3.0, 510);
    overfits.step(step < 20 ? 3.0 : 1.0, 510);
  }
  EXPECT_NE(diverges.validated(40, 3.5), std::nullopt);
  EXPECT_EQ(overfits.validated(40, 3.5), std::nullopt);
  EXPECT_FALSE(overfits.now());
}

// Steps of few targets have losses far from the mean.
// A short run on other data than the validation data: it forgets, and learns well.
TEST(Divergence, IsNotForgetting) {
  Divergence forgets({.steps = 6, .uniform_loss = kUniform});
  forgets.validated(0, 0.367);
  const std::vector<double> losses = {1.83, 1.70, 1.21, 0.90, 0.61, 0.44};
  for (std::size_t i = 0; i < losses.size(); ++i) {
    forgets.step(losses[i], 110);
    EXPECT_EQ(forgets.validated(static_cast<std::int64_t>(i) + 1, 0.37 + 0.05 * static_cast<double>(i)), std::nullopt);
  }
  EXPECT_FALSE(forgets.now());
  // Losses that hardly fall are no excuse: the next one is 11.1.
  Divergence worse({.steps = 4, .uniform_loss = kUniform});
  worse.validated(0, 7.07);
  for (const double loss : {7.07, 7.0}) worse.step(loss, 10);
  EXPECT_NE(worse.validated(3, 11.1), std::nullopt);
  worse.step(6.69, 10);
  worse.validated(4, 13.0);
  worse.step(11.1, 10);
  EXPECT_TRUE(worse.now());
  // Found early, before the training loss fell.
  Divergence early({.steps = 40, .uniform_loss = kUniform});
  early.validated(0, 0.367);
  early.step(1.8, 510);
  early.step(1.9, 510);
  EXPECT_NE(early.validated(2, 0.61), std::nullopt);
  EXPECT_TRUE(early.now());
  for (int step = 0; step < 30; ++step) early.step(0.5, 510);
  early.validated(32, 0.62);
  early.step(0.5, 510);
  EXPECT_FALSE(early.now()) << "it overfits";
}

TEST(Divergence, IsNotFoundInNoiseOfFewTargets) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> noise(0, 1);
    for (const std::int64_t steps : {10, 40, 300}) {
      for (const std::int64_t targets : {1, 16, 256}) {
        std::vector<double> losses;
        for (std::int64_t step = 0; step < steps; ++step) {
          const double mean = 2 + 0.5 * std::exp(-static_cast<double>(step) / 50);
          losses.push_back(std::abs(mean + 3 * noise(random) / std::sqrt(static_cast<double>(targets))));
        }
        Divergence divergence({.steps = steps, .uniform_loss = kUniform});
        EXPECT_EQ(diverges_at(divergence, losses, targets), 0) << seed << " " << steps << " " << targets;
      }
    }
  }
}

TEST(Divergence, IsNotFoundInTheQuickstart) {
  Divergence divergence({.steps = 800, .uniform_loss = std::log(4096.0)});
  read_metrics(std::string(testing::kSourceFolder) + "/tests/golden/runs/quickstart.jsonl",
               [&](const StepMetrics& metrics) {
                 divergence.replay(metrics);
                 EXPECT_FALSE(divergence.now()) << metrics.step;
               });
}

}  // namespace divergence_test
}  // namespace hawser::report
