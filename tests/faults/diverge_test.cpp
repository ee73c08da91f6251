// A diverging run ends with a message and keeps its earlier checkpoints; a run without targets does not start.
#include <gtest/gtest.h>

#include <fstream>

#include "harness.h"

namespace hawser::faults {
namespace {

TEST(Diverge, EndsUnsavedAndKeepsTheLastSoundCheckpoint) {
  for (const char* ranks : {"1", "4"}) {
    SCOPED_TRACE(ranks);
    const Workplace place;
    ASSERT_EQ(run(place, {"--ranks", ranks, "train.steps=7", "checkpoint.keep_last=1"}).code, 0);
    const Ended ended = run(place, {"--ranks", ranks, "--resume", "train.steps=100", "checkpoint.keep_last=1",
                                    "checkpoint.every_steps=50", "optimizer.learning_rate=1e30"});
    EXPECT_EQ(ended.code, 1) << ended.err;
    ASSERT_EQ(ended.lines().size(), 1u) << ended.err;
    EXPECT_NE(ended.err.find("not finite; the run stops without saving; last checkpoint: step 7; try a lower "
                             "optimizer.learning_rate"),
              std::string::npos)
        << ended.err;
    EXPECT_EQ(verified_step(place.out()), 7);
    EXPECT_FALSE(saving(place.out()));
    // From there it resumes with a better recipe.
    EXPECT_EQ(run(place, {"--ranks", ranks, "--resume", "train.steps=9"}).code, 0);
  }
}

TEST(Diverge, NothingToLearnFromIsAnError) {
  const Workplace place;
  std::ofstream(place.folder() / "none.jsonl") << R"({"input_ids": [1, 2, 3], "labels": [-100, -100, -100]})"
                                               << "\n";
  for (const char* ranks : {"1", "4"}) {
    const Ended ended = run(place, {"--ranks", ranks, "data.train=[none.jsonl]"});
    EXPECT_EQ(ended.code, 2) << ended.err;
    ASSERT_EQ(ended.lines().size(), 1u) << ended.err;
    EXPECT_NE(ended.err.find("train.idx: no token to predict"), std::string::npos) << ended.err;
  }
}

}  // namespace
}  // namespace hawser::faults
