// FP8 runs whose steps saturate and are replayed. With a low limit and a history of one amax, many steps do.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "harness.h"

namespace hawser::faults {
namespace replay_test {

constexpr std::int64_t kSteps = 40;

using Words = std::vector<std::string>;

Words words(const Words& more, const std::string& limit = "0.0005") {
  Words all = {"precision.compute=fp8",
               "precision.fp8.amax_history=1",
               "precision.fp8.saturation_limit=" + limit,
               "precision.fp8.fallback_after=0",
               "train.steps=" + std::to_string(kSteps),
               "checkpoint.every_steps=1"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// By step: how often it was replayed.
std::map<std::int64_t, int> replays(const fs::path& out) {
  std::map<std::int64_t, int> all;
  std::ifstream file(out / "metrics.jsonl");
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json.contains("replays")) all[json["step"]] = json["replays"];
  }
  return all;
}

// However many steps are in flight when one is replayed, and whatever is saved meanwhile, the run is the same.
TEST(Replay, DoesNotDependOnTheStepsInFlight) {
  for (const char* ranks : {"1", "2"}) {
    SCOPED_TRACE(ranks);
    const Workplace place;
    const Ended whole = run(place, words({"--ranks", ranks, "output=whole"}));
    ASSERT_EQ(whole.code, 0) << whole.err;
    const auto counts = replays(place.out("whole"));
    EXPECT_GT(counts.size(), 3u);
    EXPECT_LT(counts.size(), static_cast<std::size_t>(kSteps));
    EXPECT_NE(whole.err.find("saturate FP8; the step is replayed with new scales"), std::string::npos) << whole.err;
    EXPECT_EQ(metrics(place.out("whole")).size(), static_cast<std::size_t>(kSteps));
    const Ended between = run(place, words({"--ranks", ranks, "output=between", "checkpoint.asynchronous=false"}));
    ASSERT_EQ(between.code, 0) << between.err;
    expect_equal_runs(place.out("whole"), place.out("between"), kSteps);
    const Ended rare = run(place, words({"--ranks", ranks, "output=rare", "checkpoint.every_steps=0"}));
    ASSERT_EQ(rare.code, 0) << rare.err;
    expect_equal_runs(place.out("whole"), place.out("rare"), kSteps);
    EXPECT_EQ(replays(place.out("rare")), counts);
    const Ended without = run(place, words({"--ranks", ranks, "output=without"}, "1"));
    ASSERT_EQ(without.code, 0) << without.err;
    EXPECT_TRUE(replays(place.out("without")).empty());
    EXPECT_NE(metrics(place.out("without")), metrics(place.out("whole")));
  }
}

// The lowest limit: a single element that is clipped replays its step. What still saturates after three replays counts
// as it is, so that the run ends with every step once.
TEST(Replay, WithALimitOfZeroEveryClippedStepIsReplayedAtMostThreeTimes) {
  const Workplace place;
  const Ended zero = run(place, words({"--ranks", "2", "output=zero"}, "0")),
              low = run(place, words({"--ranks", "2", "output=low"}));
  ASSERT_EQ(zero.code, 0) << zero.err;
  ASSERT_EQ(low.code, 0) << low.err;
  const auto of_zero = replays(place.out("zero")), of_low = replays(place.out("low"));
  EXPECT_GT(of_zero.size(), of_low.size());
  for (const auto& [step, count] : of_zero) EXPECT_TRUE(count >= 1 && count <= 3) << step << ": " << count;
  const auto steps = metrics(place.out("zero"));
  ASSERT_EQ(steps.size(), static_cast<std::size_t>(kSteps));
  for (std::size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i].step, static_cast<std::int64_t>(i + 1));
  EXPECT_LT(steps.back().loss, steps.front().loss);
}

// Stopped, or killed, in many places.
TEST(Replay, ResumesInTheMiddle) {
  for (const char* ranks : {"1", "2"}) {
    SCOPED_TRACE(ranks);
    const Workplace place;
    const Ended whole = run(place, words({"--ranks", ranks, "output=whole"}));
    ASSERT_EQ(whole.code, 0) << whole.err;
    for (const int signal : {SIGKILL, SIGINT, SIGINT}) {
      Fit going(place, words({"--ranks", ranks, "--resume"}));
      const std::int64_t from = newest_step(place.out()) + 5;
      ASSERT_TRUE(eventually([&] { return newest_step(place.out()) >= from || !going.going(); }));
      if (signal == SIGKILL) {
        going.kill_all();
      } else {
        kill(going.pid(), signal);
      }
      static_cast<void>(going.wait());
    }
    const Ended resumed = run(place, words({"--ranks", ranks, "--resume"}));
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    expect_equal_runs(place.out("whole"), place.out(), kSteps);
    EXPECT_EQ(replays(place.out()), replays(place.out("whole")));
  }
}

// Every tenth step is compared with itself without FP8; the run is the same, replays included.
TEST(Replay, VerifiedStepsLeaveTheRunAsItIs) {
  for (const char* ranks : {"1", "2"}) {
    SCOPED_TRACE(ranks);
    const Workplace place;
    const Ended without = run(place, words({"--ranks", ranks, "output=without"}));
    ASSERT_EQ(without.code, 0) << without.err;
    const Ended with = run(place, words({"--ranks", ranks, "output=with", "precision.fp8.verify_every=2"}));
    ASSERT_EQ(with.code, 0) << with.err;
    expect_equal_runs(place.out("without"), place.out("with"), kSteps);
    EXPECT_EQ(replays(place.out("with")), replays(place.out("without")));
    std::ifstream file(place.out("with") / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      ASSERT_EQ(json.contains("fp8_error"), json["step"].get<int>() % 2 == 0) << line;
      if (!json.contains("fp8_error")) continue;
      const auto& error = json["fp8_error"];
      EXPECT_GE(error["loss"].get<double>(), 0) << line;
      EXPECT_LT(error["loss"].get<double>(), 0.05) << line;
      EXPECT_GT(error["gradient"].get<double>(), 0) << line;
      EXPECT_GE(error["worst"].get<double>(), error["gradient"].get<double>()) << line;
      EXPECT_NE(error["parameter"].get<std::string>().find("model."), std::string::npos) << line;
    }
  }
}

}  // namespace replay_test
}  // namespace hawser::faults
