// Background checkpoints: the same bytes as synchronous ones, by steps, by time and after the best evaluation, and
// readable while the run continues.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "checkpoint/checkpoint.h"
#include "harness.h"

namespace hawser::faults {
namespace background_test {

using Words = std::vector<std::string>;

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Ended hawser(const Workplace& place, const Words& words) {
  return Fit(place, Fit::Command{.words = words}).wait();
}

std::string lines_with(const std::string& text, const std::string& part) {
  std::istringstream in(text);
  std::string found;
  for (std::string line; std::getline(in, line);) {
    if (line.find(part) != std::string::npos) found += line + "\n";
  }
  return found;
}

TEST(Background, SavesWhatIsSavedBetweenSteps) {
  const std::vector<Words> meshes = {
      {"--ranks", "1"},
      {"--ranks", "4", "parallel.context_parallel_degree=2"},
      {"--ranks", "4", "parallel.hybrid_shard_degree=2"},
  };
  for (const Words& mesh : meshes) {
    SCOPED_TRACE(mesh.back());
    const Workplace place;
    const Words words = with(mesh, {"train.steps=30", "checkpoint.every_steps=3", "checkpoint.keep_last=20"});
    const Ended beside = run(place, with(words, {"output=beside"}));
    ASSERT_EQ(beside.code, 0) << beside.err;
    const Ended between = run(place, with(words, {"output=between", "checkpoint.asynchronous=false"}));
    ASSERT_EQ(between.code, 0) << between.err;
    EXPECT_EQ(lines_with(beside.err, "snapshot"), "");
    expect_equal_runs(place.out("beside"), place.out("between"), 30);
    for (int step = 3; step < 30; step += 3) {
      const std::string name = "checkpoints/step-000000" + std::string(step < 10 ? "0" : "") + std::to_string(step);
      ASSERT_TRUE(fs::exists(place.out("beside") / name)) << name << "\n" << beside.err;
      EXPECT_EQ(tensors(place.out("beside") / name), tensors(place.out("between") / name)) << name;
    }
  }
}

TEST(Background, SavesByTheClockOfRankZero) {
  for (const char* ranks : {"1", "2"}) {
    SCOPED_TRACE(ranks);
    const Workplace place;
    Fit going(place, {"--ranks", ranks, "train.steps=1000000", "checkpoint.every_steps=0",
                      "checkpoint.every_minutes=0.005", "checkpoint.keep_last=2"});
    ASSERT_TRUE(eventually([&] { return newest_step(place.out()) > 0 || !going.going(); })) << going.err();
    const std::int64_t first = newest_step(place.out());
    ASSERT_TRUE(eventually([&] { return newest_step(place.out()) > first || !going.going(); })) << going.err();
    going.kill_all();
    going.wait();
    EXPECT_GT(verified_step(place.out()), first);
  }
}

// The bound is half the time between the saves: the first one may have begun long before it is seen.
TEST(Background, TheTimeBetweenSavesIsInMinutes) {
  constexpr int kSaves = 3;  // after the first
  constexpr double kMinutes = 0.01;
  const Workplace place;
  Fit going(place, {"--ranks", "1", "train.steps=1000000", "checkpoint.every_steps=0",
                    cat("checkpoint.every_minutes=", kMinutes), "checkpoint.keep_last=1000"});
  const auto saves = [&] {
    const fs::path folder = place.out() / "checkpoints";
    return fs::exists(folder) ? std::distance(fs::directory_iterator(folder), fs::directory_iterator()) : 0;
  };
  ASSERT_TRUE(eventually([&] { return saves() > 0 || !going.going(); })) << going.err();
  const auto begin = std::chrono::steady_clock::now();
  ASSERT_TRUE(eventually([&] { return saves() > kSaves || !going.going(); })) << going.err();
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  going.kill_all();
  going.wait();
  EXPECT_GT(passed.count(), kSaves * 60 * kMinutes / 2);
}

// If host memory has no space for the snapshot, a message is printed and the run's results are unchanged.
TEST(Background, WithoutHostMemoryStepsWait) {
  for (const char* ranks : {"1", "2"}) {
    SCOPED_TRACE(ranks);
    const Workplace place;
    const Ended planned = hawser(place, {"plan", "recipe.yaml", "--json", "--ranks", ranks});
    ASSERT_EQ(planned.code, 0) << planned.err;
    const auto memory = nlohmann::json::parse(planned.out)["memory"][0];
    const std::int64_t snapshot = memory["host_snapshot"], needed = memory["needed"];
    EXPECT_GT(snapshot, 0);
    const Words words = {"--ranks", ranks, "train.steps=12"};
    const Ended tight =
        run(place, with(words, {"memory.capacity=" + std::to_string(needed + snapshot - 1) + "B", "output=tight"}));
    ASSERT_EQ(tight.code, 0) << tight.err;
    const std::string message = lines_with(tight.err, "host memory is too small for a snapshot");
    EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 1) << tight.err;
    const std::string bytes = "(expected at most " + std::to_string(snapshot - 1) + " bytes per rank, got " +
                              std::to_string(snapshot) + " bytes)";
    EXPECT_NE(message.find(bytes), std::string::npos) << tight.err;
    const Ended ample = run(place, words);
    ASSERT_EQ(ample.code, 0) << ample.err;
    EXPECT_EQ(lines_with(ample.err, "snapshot"), "") << ample.err;
    expect_equal_runs(place.out("tight"), place.out(), 12);
  }
}

TEST(Background, TheBestEvaluationIsKept) {
  for (const char* ranks : {"1", "2"}) {
    for (const char* how : {"checkpoint.asynchronous=true", "checkpoint.asynchronous=false"}) {
      SCOPED_TRACE(std::string(ranks) + " " + how);
      const Workplace place;
      // The learning rate grows until the loss does: the best is in the middle.
      const Words words = {"--ranks",
                           ranks,
                           how,
                           "train.steps=120",
                           "train.evaluate_every=10",
                           "checkpoint.every_steps=25",
                           "checkpoint.keep_last=1",
                           "optimizer.learning_rate=0.3",
                           "optimizer.warmup_steps=120",
                           "optimizer.schedule=constant",  // the resumed run does not improve either
                           "optimizer.gradient_clip=0"};
      const Ended ended = run(place, words);
      ASSERT_EQ(ended.code, 0) << ended.err;
      std::int64_t best = 0;
      double min = 1e30;
      for (const Step& step : metrics(place.out())) {
        if (step.validation_loss >= 0 && step.validation_loss < min) min = step.validation_loss, best = step.step;
      }
      ASSERT_LT(best, 120) << "a run whose last step is the best shows nothing";
      ASSERT_NE(best % 25, 0);
      auto kept = checkpoint::Checkpoint::open((place.out() / "best").string());
      EXPECT_EQ(kept.step(), best);
      EXPECT_EQ(nlohmann::json::parse(kept.metadata())["validation_loss"], min);
      EXPECT_EQ(verified_step(place.out()), 120);

      // It is an ordinary checkpoint.
      const Words data = {"--data", "valid.jsonl", "--sequence-length", "64"};
      const Ended of_best = hawser(place, with({"eval", "--model", "out/best"}, data));
      ASSERT_EQ(of_best.code, 0) << of_best.err;
      const Ended of_last = hawser(place, with({"eval", "--model", "out"}, data));
      EXPECT_LT(nlohmann::json::parse(of_best.out)["loss"].get<double>(),
                nlohmann::json::parse(of_last.out)["loss"].get<double>());
      EXPECT_EQ(hawser(place, {"export", "out/best", "exported"}).code, 0);
      const Ended text = hawser(place, {"generate", "--model", "out/best", "--prompt-ids", "1,2", "--max-tokens", "3"});
      EXPECT_EQ(text.code, 0) << text.err;

      // It stays the best when the run is resumed, and moves with the run when another begins.
      ASSERT_EQ(run(place, with(words, {"train.steps=130", "--resume"})).code, 0);
      EXPECT_EQ(checkpoint::Checkpoint::open((place.out() / "best").string()).step(), best);
      const Ended another = run(place, {"train.steps=6"});
      ASSERT_EQ(another.code, 0) << another.err;
      EXPECT_FALSE(fs::exists(place.out() / "best"));
      EXPECT_EQ(checkpoint::Checkpoint::open((place.out() / "earlier-1/best").string()).step(), best);
    }
  }
}

TEST(Background, ExportsWhileTraining) {
  const Workplace place;
  Fit going(place, {"--ranks", "2", "train.steps=1000000", "checkpoint.every_steps=1", "checkpoint.keep_last=1"});
  ASSERT_TRUE(eventually([&] { return newest_step(place.out()) > 0 || !going.going(); })) << going.err();
  std::int64_t before = 0;
  for (int i = 0; i < 20; ++i) {
    const std::string folder = "exported-" + std::to_string(i);
    const Ended exported = hawser(place, {"export", "out", folder, "--json"});
    ASSERT_EQ(exported.code, 0) << exported.err;
    const std::int64_t step = nlohmann::json::parse(exported.out)["step"];
    EXPECT_GE(step, before);
    before = step;
    // The exported model has all of its weights.
    const Ended read = hawser(place, {"inspect", folder, "--json"});
    ASSERT_EQ(read.code, 0) << read.err;
  }
  EXPECT_TRUE(going.going()) << going.err();
  going.kill_all();
  going.wait();
  EXPECT_GE(verified_step(place.out()), before);
}

TEST(Background, InspectShowsAndVerifies) {
  const Workplace place;
  ASSERT_EQ(run(place, {"--ranks", "4", "parallel.context_parallel_degree=2", "train.steps=10"}).code, 0);
  const std::string folder = "out/checkpoints/step-00000010", older = "out/checkpoints/step-00000005";
  const Ended shown = hawser(place, {"inspect", "checkpoint", folder, "--verify"});
  ASSERT_EQ(shown.code, 0) << shown.err;
  for (const char* part : {"10, saved by 4 ranks, context_parallel_degree 2", "model.embed_tokens.weight",
                           "float32 [61, 32]", "in 4 boxes, and 2 moments", "on disk", "verified"}) {
    EXPECT_NE(shown.out.find(part), std::string::npos) << part << "\n" << shown.out;
  }
  const Ended as_json = hawser(place, {"inspect", folder, "--verify", "--json"});
  const auto json = nlohmann::json::parse(as_json.out);
  EXPECT_EQ(json["verified"], true);
  EXPECT_EQ(json["files"].size(), 5u);
  EXPECT_EQ(json["parallel"]["context_parallel_degree"], 2);

  flip(place.folder() / folder / "rank-00001.bin", 100);
  const Ended corrupt = hawser(place, {"inspect", folder, "--verify"});
  EXPECT_EQ(corrupt.code, 2);
  EXPECT_EQ(corrupt.out, "");
  EXPECT_NE(corrupt.err.find("rank-00001.bin: checksum mismatch"), std::string::npos) << corrupt.err;
  EXPECT_NE(corrupt.err.find("previous checkpoint: hawser inspect " + older), std::string::npos) << corrupt.err;
  for (const Words& words : {Words{"export", folder, "x"}, Words{"generate", "--model", folder, "--prompt-ids", "1"}}) {
    const Ended ended = hawser(place, words);
    EXPECT_EQ(ended.code, 2) << ended.err;
    ASSERT_EQ(ended.lines().size(), 1u) << ended.err;
    EXPECT_NE(ended.err.find("try " + older), std::string::npos) << ended.err;
    EXPECT_FALSE(fs::exists(place.folder() / "x")) << "half an export under its final name";
  }
  EXPECT_EQ(hawser(place, {"inspect", "recipe.yaml", "--verify"}).code, 2);
}

}  // namespace background_test
}  // namespace hawser::faults
