// The output folder, or files in it, are moved or removed while a run writes there.
#include <gtest/gtest.h>

#include "harness.h"

namespace hawser::faults {
namespace displaced_test {

constexpr std::int64_t kSteps = 300;

using Words = std::vector<std::string>;

// Synchronous and asynchronous saves, one rank and two.
const std::vector<Words> kKinds = {
    {"--ranks", "1", "checkpoint.asynchronous=false"},
    {"--ranks", "1", "checkpoint.asynchronous=true"},
    {"--ranks", "2", "checkpoint.asynchronous=true"},
};

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

void remove_while_written(const fs::path& folder) {
  ASSERT_TRUE(eventually([&] {
    std::error_code ignored;
    fs::remove_all(folder, ignored);
    return !fs::exists(folder);
  }));
}

// Every step once, up to the newest checkpoint.
void expect_all_steps(const fs::path& folder) {
  const auto steps = metrics(folder);
  ASSERT_GE(static_cast<std::int64_t>(steps.size()), newest_step(folder));
  for (std::size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i].step, static_cast<std::int64_t>(i) + 1);
}

TEST(Displaced, AMovedFolderIsFollowedAndResumes) {
  for (const Words& words : kKinds) {
    SCOPED_TRACE(words[1] + " " + words[2]);
    const Workplace place;
    ASSERT_EQ(run(place, with(words, {"output=whole"})).code, 0);
    Fit going(place, words);
    ASSERT_TRUE(eventually([&] { return newest_step(place.out()) >= 5 || !going.going(); }));
    fs::rename(place.out(), place.out("moved"));
    const Ended ended = going.wait();
    EXPECT_EQ(ended.code, 2) << ended.err;
    const std::int64_t saved = newest_step(place.out("moved"));
    EXPECT_NE(ended.err.find("hawser: out: the output folder was moved to " + place.out("moved").string() +
                             " while the run was writing to it; saved step " + std::to_string(saved) + " in "),
              std::string::npos)
        << ended.err;
    EXPECT_FALSE(fs::exists(place.out()));
    EXPECT_LT(saved, kSteps);
    expect_all_steps(place.out("moved"));
    const Ended resumed = run(place, with(words, {"--resume", "output=moved"}));
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    expect_equal_runs(place.out("whole"), place.out("moved"), kSteps);
  }
}

TEST(Displaced, ARunWhoseFolderIsRemovedSavesInANewOne) {
  for (const Words& words : kKinds) {
    SCOPED_TRACE(words[1] + " " + words[2]);
    const Workplace place;
    Fit going(place, words);
    ASSERT_TRUE(eventually([&] { return newest_step(place.out()) >= 5 || !going.going(); }));
    remove_while_written(place.out());
    const Ended ended = going.wait();
    EXPECT_EQ(ended.code, 2) << ended.err;
    const fs::path rescued = place.out("out.rescued-1");
    EXPECT_NE(ended.err.find("the output folder was removed during the run; saved step "), std::string::npos)
        << ended.err;
    EXPECT_GT(verified_step(rescued), 0);
    expect_all_steps(rescued);
    const Ended resumed = run(place, with(words, {"--resume", "output=out.rescued-1"}));
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_EQ(static_cast<std::int64_t>(metrics(rescued).size()), kSteps);
  }
}

// The lock went with the folder, so nothing keeps a second run out: each must write its own files only.
TEST(Displaced, TwoRunsNeverShareAFolder) {
  const Workplace place;
  Fit first(place, {"--ranks", "1"});
  ASSERT_TRUE(eventually([&] { return newest_step(place.out()) >= 5 || !first.going(); }));
  fs::rename(place.out(), place.out("moved"));
  Fit second(place, {"--ranks", "1", "--resume"});
  const Ended moved = first.wait(), own = second.wait();
  EXPECT_EQ(moved.code, 2) << moved.err;
  EXPECT_EQ(own.code, 0) << own.err;
  EXPECT_EQ(static_cast<std::int64_t>(metrics(place.out()).size()), kSteps);
  EXPECT_EQ(verified_step(place.out()), kSteps);
  EXPECT_LT(verified_step(place.out("moved")), kSteps);
  expect_all_steps(place.out("moved"));
}

TEST(Displaced, RemovedMetricsAreWrittenAgain) {
  const Workplace place;
  Fit going(place, {"--ranks", "1"});
  ASSERT_TRUE(eventually([&] { return newest_step(place.out()) >= 5 || !going.going(); }));
  fs::remove(place.out() / "metrics.jsonl");
  const Ended ended = going.wait();
  EXPECT_EQ(ended.code, 2) << ended.err;
  EXPECT_NE(ended.err.find("metrics.jsonl was moved or removed during the run; saved step "), std::string::npos)
      << ended.err;
  expect_all_steps(place.out());
}

TEST(Displaced, ReplacedMetricsLoseNoLine) {
  const Workplace place;
  Fit going(place, {"--ranks", "1"});
  ASSERT_TRUE(eventually([&] { return newest_step(place.out()) >= 5 || !going.going(); }));
  fs::copy_file(place.out() / "metrics.jsonl", place.out("edited"));  // as `sed -i` does
  fs::rename(place.out("edited"), place.out() / "metrics.jsonl");
  const Ended ended = going.wait();
  EXPECT_EQ(ended.code, 2) << ended.err;
  EXPECT_NE(ended.err.find("metrics.jsonl was replaced during the run; the other file is now "), std::string::npos)
      << ended.err;
  EXPECT_TRUE(fs::exists(place.out() / "metrics.replaced-1.jsonl"));
  expect_all_steps(place.out());
}

// Without its lock another run could start in the folder.
TEST(Displaced, ARemovedLockStopsTheRun) {
  const Workplace place;
  Fit going(place, {"--ranks", "1"});
  ASSERT_TRUE(eventually([&] { return newest_step(place.out()) >= 5 || !going.going(); }));
  fs::remove(place.out() / ".lock");
  const Ended ended = going.wait();
  EXPECT_EQ(ended.code, 2) << ended.err;
  EXPECT_NE(ended.err.find("the lock of the output folder was removed during the run; saved step "), std::string::npos)
      << ended.err;
  EXPECT_GT(verified_step(place.out("out.rescued-1")), 0);
}

}  // namespace displaced_test
}  // namespace hawser::faults
