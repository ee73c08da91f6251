// A diverging run ends with a message and keeps its earlier checkpoints; a run without targets does not start.
#include <gtest/gtest.h>

#include <fstream>

#include "base/cat.h"
#include "harness.h"

namespace hawser::faults {
namespace diverge_test {

TEST(Diverge, EndsUnsavedAndKeepsTheLastSoundCheckpoint) {
  for (const char* ranks : {"1", "4"}) {
    SCOPED_TRACE(ranks);
    const Workplace place;
    ASSERT_EQ(run(place, {"--ranks", ranks, "train.steps=7", "checkpoint.keep_last=1"}).code, 0);
    const Ended ended = run(place, {"--ranks", ranks, "--resume", "train.steps=100", "checkpoint.keep_last=1",
                                    "checkpoint.every_steps=50", "optimizer.learning_rate=1e30"});
    EXPECT_EQ(ended.code, 6) << ended.err;
    ASSERT_EQ(ended.lines().size(), 2u) << ended.err;  // the first one warns of the learning rate
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

// The last update overflows after a finite loss and gradient. The checkpoint before must survive, even the only one.
TEST(Diverge, WeightsThatOverflowAreNotSaved) {
  for (const char* ranks : {"1", "2"}) {
    for (const char* asynchronous : {"true", "false"}) {
      SCOPED_TRACE(cat(ranks, " ranks, asynchronous ", asynchronous));
      const Workplace place;
      const auto words = [&](const std::vector<std::string>& more) {
        std::vector<std::string> all = {"--ranks",
                                        ranks,
                                        cat("checkpoint.asynchronous=", asynchronous),
                                        "checkpoint.every_steps=1",
                                        "checkpoint.keep_last=1",
                                        "optimizer.warmup_steps=0",
                                        "optimizer.schedule=constant"};
        all.insert(all.end(), more.begin(), more.end());
        return all;
      };
      ASSERT_EQ(run(place, words({"train.steps=3"})).code, 0);
      const Ended ended = run(place, words({"train.steps=6", "optimizer.learning_rate=3e38", "--resume"}));
      EXPECT_EQ(ended.code, 6);
      EXPECT_NE(ended.err.find("is not finite after the update"), std::string::npos) << ended.err;
      EXPECT_EQ(newest_step(place.out()), 3);
      EXPECT_EQ(run(place, words({"train.steps=4", "--resume"})).code, 0);
      EXPECT_EQ(newest_step(place.out()), 4);
    }
  }
}

// All losses are finite, but the model is worse at the end than at the start. `best` is of the steps before.
TEST(Diverge, AFinishedRunSaysSoAndKeepsItsBest) {
  for (const char* ranks : {"1", "4"}) {
    SCOPED_TRACE(ranks);
    const Workplace place;
    const auto fit = [&](const std::vector<std::string>& more) {
      std::vector<std::string> words = {"--ranks", ranks, "train.evaluate_every=2", "optimizer.warmup_steps=0"};
      words.insert(words.end(), more.begin(), more.end());
      return run(place, words);
    };
    ASSERT_EQ(fit({"train.steps=4"}).code, 0);
    const auto best = tensors(place.out() / "best");
    const Ended ended = fit({"--resume", "train.steps=12", "optimizer.learning_rate=10"});
    EXPECT_EQ(ended.code, 6) << ended.err;
    EXPECT_NE(ended.err.find("diverged: "), std::string::npos) << ended.err;
    EXPECT_NE(ended.err.find("hawser: the run diverged: its loss rose above that at the start and has not come back"),
              std::string::npos)
        << ended.err;
    EXPECT_EQ(ended.err.find("exited with code"), std::string::npos) << ended.err;
    EXPECT_EQ(newest_step(place.out()), 12) << "it is saved";
    EXPECT_EQ(tensors(place.out() / "best"), best);
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

}  // namespace diverge_test
}  // namespace hawser::faults
