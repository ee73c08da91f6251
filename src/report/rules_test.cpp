#include "report/rules.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <random>

#include "base/testing/test_paths.h"
#include "report/metrics_file.h"
#include "report/phase_clock.h"
#include "report/testing/sample_metrics.h"

namespace hawser::report {
namespace rules_test {

// A normal run: the loss falls by a power law from 8 towards 2.5, with noise; the norm falls from 3 to 0.5.
class Series {
 public:
  explicit Series(std::int64_t steps, std::uint64_t seed = 1) : steps_(steps), random_(seed) {}
  StepMetrics at(std::int64_t step) {
    const double t = static_cast<double>(step);
    std::normal_distribution<double> noise(0, 1);
    StepMetrics m = metrics_of(step);
    m.loss = 2.5 + 5.5 * std::pow(1 + t / 10, -0.4) + 0.08 * noise(random_);
    m.grad_norm = (0.5 + 2.5 / (1 + t / 20)) * std::exp(0.25 * noise(random_));
    const double done = t / static_cast<double>(steps_);
    m.lr = t < 50 ? 3e-3 * t / 50 : 3e-3 * 0.5 * (1 + std::cos(M_PI * done));
    return m;
  }
  std::int64_t steps() const { return steps_; }

 private:
  std::int64_t steps_;
  std::mt19937_64 random_;
};

RulesOptions options(std::int64_t steps) {
  return {.steps = steps, .warmup_steps = 50, .peak_learning_rate = 3e-3, .gradient_clip = 1};
}

std::vector<std::string> found(
    Series series, const std::function<void(StepMetrics&)>& change = [](StepMetrics&) {}) {
  Rules rules(options(series.steps()));
  std::vector<std::string> out;
  for (std::int64_t step = 1; step <= series.steps(); ++step) {
    StepMetrics metrics = series.at(step);
    change(metrics);
    for (const Finding& finding : rules.step(metrics)) {
      EXPECT_EQ(finding.step, step);
      EXPECT_NE(finding.text.find("try "), std::string::npos) << finding.text;
      out.push_back(cat(finding.rule, " ", step));
    }
  }
  return out;
}

using Words = std::vector<std::string>;

TEST(Rules, ReportNothingInNormalRuns) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    for (const std::int64_t steps : {30, 800, 5000})
      EXPECT_EQ(found(Series(steps, seed)), Words{}) << seed << " " << steps;
  }
}

// Every step of a run of `recipes/quickstart.yaml`.
TEST(Rules, ReportNothingInTheQuickstart) {
  Rules rules({.steps = 800, .warmup_steps = 200, .peak_learning_rate = 3e-3, .gradient_clip = 1});
  std::int64_t steps = 0;
  read_metrics(std::string(testing::kSourceFolder) + "/tests/golden/runs/quickstart.jsonl",
               [&](const StepMetrics& metrics) {
                 ++steps;
                 for (const Finding& finding : rules.step(metrics))
                   ADD_FAILURE() << finding.step << " " << finding.text;
               });
  EXPECT_GE(steps, 400);
}

TEST(Rules, ReportEachExplosionOnce) {
  EXPECT_EQ(found(Series(800),
                  [](StepMetrics& m) {
                    if ((m.step >= 300 && m.step <= 305) || m.step == 310 || m.step == 500) m.grad_norm *= 40;
                  }),
            (Words{"exploding gradients 300", "exploding gradients 500"}));
  // Warmup begins high: no median yet.
  EXPECT_EQ(found(Series(100),
                  [](StepMetrics& m) {
                    if (m.step < 10) m.grad_norm *= 100;
                  }),
            Words{});
}

TEST(Rules, ReportVanishingGradients) {
  EXPECT_EQ(found(Series(800),
                  [](StepMetrics& m) {
                    if (m.step >= 300) m.grad_norm *= 1e-5;
                  }),
            (Words{"vanishing gradients 310"}));
  EXPECT_EQ(found(Series(100), [](StepMetrics& m) { m.grad_norm = 0; }), (Words{"vanishing gradients 20"}));
  // The loss is nearly 0.
  EXPECT_EQ(found(Series(800),
                  [](StepMetrics& m) {
                    if (m.step < 300) return;
                    m.grad_norm *= 1e-5;
                    m.loss = 1e-4;
                  }),
            Words{});
}

TEST(Rules, ReportALossThatDoesNotFall) {
  // After warmup, three blocks: 51-150, then two that do not fall.
  EXPECT_EQ(found(Series(800), [](StepMetrics& m) { m.loss = 6 + static_cast<double>(m.step) / 1000; }),
            (Words{"loss not falling 350"}));
  // At the end of a schedule the loss may stay flat.
  EXPECT_EQ(found(Series(800),
                  [](StepMetrics& m) {
                    if (m.step > 500) m.loss = 3 + static_cast<double>(m.step) / 1000;
                  }),
            Words{});
}

TEST(Rules, ReportOverfitting) {
  const auto evaluated = [](const std::vector<double>& losses) {
    return found(Series(800), [&](StepMetrics& m) {
      const auto i = static_cast<std::size_t>(m.step / 100);
      if (m.step % 100 == 0 && i <= losses.size()) m.validation_loss = losses[i - 1];
    });
  };
  EXPECT_EQ(evaluated({4, 3.5, 3.3, 3.35, 3.4, 3.5, 3.6, 3.7}), (Words{"overfitting 500"}));
  EXPECT_EQ(evaluated({4, 3.5, 3.3, 3.35, 3.3, 3.35, 3.3, 3.35}), Words{});
  EXPECT_EQ(evaluated({4, 3.5, 3.3, 3.31, 3.32, 3.3, 3.2, 3.1}), Words{});
  EXPECT_EQ(evaluated({4, 3.5, 3.6, 3.7, 3.2, 3.3, 3.4, 3.5}), (Words{"overfitting 400", "overfitting 700"}));
}

TEST(Rules, SkipStepsWithoutTargetsAndReportNan) {
  EXPECT_EQ(found(Series(800),
                  [](StepMetrics& m) {
                    if (m.step % 2 == 0) m.targets = 0, m.loss = m.grad_norm = 0;
                  }),
            Words{});
  Rules rules(options(10));
  StepMetrics metrics = metrics_of(1);
  metrics.loss = std::nan("");
  EXPECT_EQ(rules.step(metrics).at(0).rule, kNotANumber);
}

TEST(StallRule, ReportsOncePerStep) {
  StallRule rule;
  EXPECT_FALSE(rule.waiting(1, 1e6));  // no step times yet
  for (int i = 0; i < 3; ++i) rule.step(1.0);
  EXPECT_FALSE(rule.waiting(4, 29));
  EXPECT_TRUE(rule.waiting(4, 31));
  EXPECT_FALSE(rule.waiting(4, 40));
  EXPECT_TRUE(rule.waiting(5, 40));
  for (int i = 0; i < 100; ++i) rule.step(60.0);
  EXPECT_FALSE(rule.waiting(6, 599));
  EXPECT_TRUE(rule.waiting(6, 601));
}

TEST(PhaseClock, AddsUpByKind) {
  PhaseClock clock;
  const PhaseClock::Clock::time_point zero{};
  const auto at = [&](int seconds) { return zero + std::chrono::seconds(seconds); };
  EXPECT_EQ(clock.now(at(9)).kind, "");
  EXPECT_TRUE(clock.totals(at(9)).empty());
  clock.enter("starting", "reading", at(10));
  clock.enter("training", "step 1", at(13));
  clock.enter("saving", "saving step 1", at(20));
  clock.enter("training", "step 2", at(21));
  EXPECT_EQ(clock.now(at(25)).text, "step 2");
  EXPECT_EQ(clock.now(at(25)).seconds, 4);
  EXPECT_EQ(clock.totals(at(25)),
            (std::vector<std::pair<std::string, double>>{{"starting", 3}, {"training", 11}, {"saving", 1}}));
}

// A run too short for blocks tells at its end: by the validation loss, or by its first and last third.
TEST(Rules, ReportAShortRunThatDoesNotFall) {
  const auto run = [](double slope, std::optional<double> before, std::optional<double> after) {
    Rules rules(options(60));
    Words out;
    for (std::int64_t step = 1; step <= 60; ++step) {
      StepMetrics metrics = metrics_of(step);
      metrics.loss = 3 + slope * static_cast<double>(step) + (step % 2 == 0 ? 0.3 : -0.3);
      metrics.grad_norm = 1;
      if (step == 1) metrics.initial_validation_loss = before;
      if (step == 60) metrics.validation_loss = after;
      for (const Finding& finding : rules.step(metrics)) out.push_back(cat(finding.rule, " ", step));
    }
    return out;
  };
  const Words stalls{"loss not falling 60"};
  EXPECT_EQ(run(0, {}, {}), stalls);
  EXPECT_EQ(run(-0.01, {}, {}), Words{});
  EXPECT_EQ(run(0, 3, 2.9999), stalls);
  EXPECT_EQ(run(0, 3, 2.9), Words{});
}

TEST(Rules, SayWhatTheyDidNotTest) {
  const RulesOptions short_run = options(60), long_run = options(2000);
  EXPECT_EQ(untested_rules(short_run, 1, 0),
            (Words{"diverged (2 steps)", "exploding gradients (21 steps)", "vanishing gradients (20 steps)",
                   "loss not falling (30 steps)", "overfitting (3 evaluations)"}));
  EXPECT_EQ(untested_rules(short_run, 25, 1), Words{"overfitting (3 evaluations)"});
  EXPECT_EQ(untested_rules(long_run, 500, 3), Words{"loss not falling (650 steps)"});
  EXPECT_EQ(untested_rules(long_run, 650, 3), Words{});
}

}  // namespace rules_test
}  // namespace hawser::report
