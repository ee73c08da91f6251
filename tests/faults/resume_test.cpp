// A run that goes on is the run that never stopped.
#include <gtest/gtest.h>

#include <cmath>

#include "harness.h"

namespace hawser::faults {
namespace {

constexpr std::int64_t kSteps = 300;

using Words = std::vector<std::string>;

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

struct Mesh {
  const char* name;
  Words words;
};
const std::vector<Mesh> kMeshes = {
    {"one rank", {"--ranks", "1"}},
    {"four ranks", {"--ranks", "4", "parallel.context_parallel_degree=2"}},
};

// Runs until a checkpoint of step `from` or later is there, then all of it is killed at once.
void run_and_kill(const Workplace& place, const Words& words, std::int64_t from) {
  Fit going(place, words);
  ASSERT_TRUE(eventually([&] { return newest_step(place.out()) >= from || !going.going(); }));
  going.kill_all();
  ASSERT_EQ(going.wait().code, 1009) << "it was over before it could be killed";
}

TEST(Resume, EqualsTheRunThatNeverStopped) {
  for (const Mesh& mesh : kMeshes) {
    SCOPED_TRACE(mesh.name);
    const Workplace place;
    const Words words = with(mesh.words, {"train.evaluate_every=40"});
    for (const char* out : {"output=whole", "output=again"}) {
      const Ended whole = run(place, with(words, {out}));
      ASSERT_EQ(whole.code, 0) << whole.err;
    }
    expect_equal_runs(place.out("whole"), place.out("again"), kSteps);

    for (const std::int64_t from : {5, 60}) {
      run_and_kill(place, with(words, {"--resume"}), from);
      EXPECT_LT(newest_step(place.out()), kSteps);
    }
    const Ended resumed = run(place, with(words, {"--resume"}));
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_NE(resumed.err.find("going on from "), std::string::npos) << resumed.err;
    expect_equal_runs(place.out("whole"), place.out(), kSteps);
  }
}

TEST(Resume, FollowsOnAnotherLayout) {
  const Workplace place;
  const Words same = {"checkpoint.every_steps=1", "train.steps=60", "optimizer.learning_rate=1.0e-3"};
  const Ended whole = run(place, with(same, {"--ranks", "1", "output=whole"}));
  ASSERT_EQ(whole.code, 0) << whole.err;

  run_and_kill(place, with(same, {"--ranks", "4", "parallel.context_parallel_degree=2", "train.micro_batch_size=2"}),
               5);
  run_and_kill(place, with(same, {"--ranks", "1", "--resume"}), newest_step(place.out()) + 8);
  const Ended last = run(place, with(same, {"--ranks", "2", "parallel.hybrid_shard_degree=1", "--resume"}));
  ASSERT_EQ(last.code, 0) << last.err;

  const auto expected = metrics(place.out("whole")), got = metrics(place.out());
  ASSERT_EQ(got.size(), expected.size());
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].step, expected[i].step);
    EXPECT_EQ(got[i].sequences, expected[i].sequences);
    worst = std::max(worst, std::abs(got[i].loss - expected[i].loss) / expected[i].loss);
  }
  EXPECT_LT(worst, 1e-5);
  EXPECT_GT(worst, 0) << "three layouts that sum in one order: is this the run it should be?";
  EXPECT_LT(expected.back().loss, 0.95 * expected.front().loss) << "a run that learns nothing shows nothing";
}

TEST(Resume, OfAFinishedRunOnlyEvaluates) {
  const Workplace place;
  ASSERT_EQ(run(place, {"train.steps=7"}).code, 0);
  const auto before = metrics(place.out());
  const Ended again = run(place, {"train.steps=7", "--resume", "--json"});
  EXPECT_EQ(again.code, 0);
  EXPECT_NE(again.err.find("nothing to do: 7 of 7 steps are done"), std::string::npos) << again.err;
  EXPECT_NE(again.out.find("\"validation_loss\""), std::string::npos) << again.out;
  EXPECT_EQ(again.out.find("\"train_loss\""), std::string::npos) << again.out;
  EXPECT_EQ(metrics(place.out()), before);
  EXPECT_EQ(verified_step(place.out()), 7);
}

TEST(Resume, WithoutACheckpointStartsAtTheBeginning) {
  const Workplace place;
  const Ended first = run(place, {"train.steps=6", "--resume"});
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_NE(first.err.find("no checkpoint to resume from"), std::string::npos) << first.err;
  EXPECT_EQ(metrics(place.out()).size(), 6u);
}

TEST(Resume, RefusesABatchSizeThatWouldChangeTheData) {
  const Workplace place;
  ASSERT_EQ(run(place, {"train.steps=5"}).code, 0);
  for (const char* ranks : {"1", "2"}) {
    const Ended other = run(place, {"train.steps=10", "train.global_batch_size=8", "--resume", "--ranks", ranks});
    EXPECT_EQ(other.code, 2);
    ASSERT_EQ(other.lines().size(), 1u) << other.err;
    EXPECT_NE(other.err.find("(expected 4, got 8) at train.global_batch_size"), std::string::npos) << other.err;
  }
}

TEST(NewRun, SetsAnEarlierRunAside) {
  const Workplace place;
  ASSERT_EQ(run(place, {"train.steps=12"}).code, 0);
  const Ended second = run(place, {"train.steps=6"});
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_NE(second.err.find("kept what an earlier run saved here"), std::string::npos) << second.err;
  EXPECT_EQ(verified_step(place.out()), 6);
  EXPECT_EQ(metrics(place.out()).size(), 6u);
  EXPECT_EQ(verified_step(place.out() / "earlier-1"), 12);
  EXPECT_EQ(metrics(place.out() / "earlier-1").size(), 12u);
}

}  // namespace
}  // namespace hawser::faults
