// A resumed run equals a run without interruption.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "base/cat.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/root.h"
#include "harness.h"

namespace hawser::faults {
namespace resume_test {

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

// Runs until a checkpoint of step `from` or later exists, then kills all processes at once.
void run_and_kill(const Workplace& place, const Words& words, std::int64_t from) {
  Fit going(place, words);
  ASSERT_TRUE(eventually([&] { return newest_step(place.out()) >= from || !going.going(); }));
  going.kill_all();
  // The ranks die a moment before the launcher, which may just report them.
  const int code = going.wait().code;
  ASSERT_TRUE(code == 1009 || code == 3) << "it was over before it could be killed: " << code;
}

TEST(Resume, EqualsAnUninterruptedRun) {
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
    EXPECT_NE(resumed.err.find("resuming from "), std::string::npos) << resumed.err;
    expect_equal_runs(place.out("whole"), place.out(), kSteps);
  }
}

TEST(Resume, ContinuesOnAnotherLayout) {
  const Workplace place;
  const Words same = {"checkpoint.every_steps=1", "train.steps=60", "optimizer.learning_rate=1.0e-3",
                      "train.evaluate_every=6"};
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

// Batches of which every label is -100 change nothing: not the weights, not the optimizer's state, and not the number of
// updates, which AdamW's bias correction needs after a resume too.
TEST(Resume, StepsWithoutATargetAreAsIfTheyWereNotThere) {
  const Workplace place;
  constexpr int kWithTarget = 6, kMasked = 4, kAll = kWithTarget + kMasked;
  const auto write = [&](int masked) {  // all documents have the same ids, so that their order does not matter
    std::ofstream file(place.folder() / "train.jsonl");
    for (int i = 0; i < kWithTarget + masked; ++i) {
      nlohmann::json ids = nlohmann::json::array(), labels = nlohmann::json::array();
      for (int k = 0; k < 64; ++k) {
        ids.push_back(k * 7 % 61);
        labels.push_back(i < masked ? -100 : k * 7 % 61);
      }
      file << nlohmann::json{{"input_ids", ids}, {"labels", labels}}.dump() << "\n";
    }
  };
  const auto fit = [&](const char* out, int steps, const Words& more = {}) {
    const Words words = {"--ranks",
                         "1",
                         cat("output=", out),
                         cat("train.steps=", steps),
                         "train.global_batch_size=1",
                         "optimizer.schedule=constant",
                         "optimizer.warmup_steps=0",
                         "checkpoint.every_steps=1",
                         "checkpoint.keep_last=20"};
    const Ended ended = run(place, with(words, more));
    ASSERT_EQ(ended.code, 0) << ended.err;
  };
  write(0);
  fit("without", kWithTarget);
  write(kMasked);
  fit("masked", kAll);
  std::vector<double> losses, expected;
  int masked_before_stop = 0, stop = 0;
  for (const Step& step : metrics(place.out("masked"))) {
    if (step.loss >= 0) losses.push_back(step.loss);
    // Stopped after a step without a target, and before one with.
    if (step.loss < 0 && step.step <= kAll - 2) ++masked_before_stop, stop = static_cast<int>(step.step);
  }
  for (const Step& step : metrics(place.out("without"))) expected.push_back(step.loss);
  EXPECT_EQ(losses, expected);
  ASSERT_GT(masked_before_stop, 0) << "another seed";
  fit("stopped", stop);
  fit("stopped", kAll, {"--resume"});
  const auto state = [&](const char* out, int step) {
    return tensors(place.out(out) / "checkpoints" / checkpoint::step_name(step));
  };
  const auto wanted = state("without", kWithTarget);
  EXPECT_TRUE(state("masked", kAll) == wanted);
  EXPECT_TRUE(state("stopped", kAll) == wanted);
  EXPECT_FALSE(state("without", kWithTarget - 1) == wanted) << "a run that learns nothing shows nothing";
}

// Scales of blocks follow from what they scale: a resumed run has the bits of one that did not stop. On another mesh a
// block of a weight's gradient has other tokens, so that losses differ from there on, by less than FP8 changes them.
TEST(Resume, WithScalesOfBlocksContinuesOnAnotherMesh) {
  constexpr std::int64_t kLast = 30, kStop = 12;
  const Workplace place;
  const auto fit = [&](const char* out, std::int64_t steps, const Words& more) {
    const Words words = {"precision.compute=fp8",          "precision.fp8.scaling=block", cat("output=", out),
                         "optimizer.schedule=constant",    cat("train.steps=", steps),    "checkpoint.every_steps=3",
                         "optimizer.learning_rate=1.0e-3", "train.evaluate_every=6"};
    const Ended ended = run(place, with(words, more));
    ASSERT_EQ(ended.code, 0) << ended.err;
  };
  fit("whole", kLast, {"--ranks", "1"});
  fit("plain", kLast, {"--ranks", "1", "precision.compute=float32"});
  for (const char* out : {"same", "other"}) fit(out, kStop, {"--ranks", "1"});
  fit("same", kLast, {"--ranks", "1", "--resume"});
  fit("other", kLast, {"--ranks", "2", "parallel.context_parallel_degree=2", "--resume"});
  expect_equal_runs(place.out("whole"), place.out("same"), kLast);
  const auto expected = metrics(place.out("whole")), other = metrics(place.out("other")),
             plain = metrics(place.out("plain"));
  ASSERT_EQ(other.size(), expected.size());
  double worst = 0, of_fp8 = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(other[i].sequences, expected[i].sequences);
    if (expected[i].step <= kStop) {
      EXPECT_EQ(other[i].loss, expected[i].loss);
    }
    worst = std::max(worst, std::abs(other[i].loss - expected[i].loss) / expected[i].loss);
    of_fp8 = std::max(of_fp8, std::abs(plain[i].loss - expected[i].loss) / expected[i].loss);
  }
  EXPECT_LT(worst, 0.5 * of_fp8);
  EXPECT_GT(worst, 0) << "two meshes that round the same blocks: is this the run it should be?";
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

TEST(Resume, RejectsABatchSizeThatWouldChangeTheData) {
  const Workplace place;
  ASSERT_EQ(run(place, {"train.steps=5"}).code, 0);
  for (const char* ranks : {"1", "2"}) {
    const Ended other = run(place, {"train.steps=10", "train.global_batch_size=8", "--resume", "--ranks", ranks});
    EXPECT_EQ(other.code, 2);
    ASSERT_EQ(other.lines().size(), 1u) << other.err;
    EXPECT_NE(other.err.find("(expected 4, got 8) at train.global_batch_size"), std::string::npos) << other.err;
  }
}

void flip_middle(const fs::path& path) {
  flip(path, fs::file_size(path) / 2);
}

TEST(Resume, FallsBackToAnOlderCheckpoint) {
  for (const char* ranks : {"1", "4"}) {
    SCOPED_TRACE(ranks);
    const Workplace place;
    const Words words = {"--ranks", ranks, "optimizer.schedule=constant", "checkpoint.keep_last=1"};
    ASSERT_EQ(run(place, with(words, {"train.steps=20", "output=whole"})).code, 0);
    ASSERT_EQ(run(place, {"--ranks", ranks, "optimizer.schedule=constant", "train.steps=15"}).code, 0);
    const fs::path checkpoints = place.out() / "checkpoints";
    flip_middle(checkpoints / "step-00000015" / (*ranks == '4' ? "rank-00002.bin" : "rank-00000.bin"));
    const Ended resumed = run(place, with(words, {"train.steps=20", "--resume"}));
    ASSERT_EQ(resumed.code, 0) << resumed.err;
    const auto lines = resumed.lines();
    ASSERT_EQ(lines.size(), 2u) << resumed.err;
    EXPECT_TRUE(lines[0].starts_with("hawser: skipped: ")) << lines[0];
    EXPECT_NE(lines[0].find(".bin: checksum mismatch"), std::string::npos) << lines[0];
    EXPECT_NE(lines[1].find("moved to "), std::string::npos) << lines[1];
    EXPECT_NE(resumed.err.find("(step 10)"), std::string::npos) << resumed.err;
    EXPECT_TRUE(fs::exists(checkpoints / "damaged-step-00000015"));
    expect_equal_runs(place.out("whole"), place.out(), 20);

    // If there is no other, nothing is started again without the user's consent.
    flip_middle(checkpoints / "step-00000020" / "rank-00000.bin");
    const Ended last = run(place, with(words, {"train.steps=25", "--resume"}));
    EXPECT_EQ(last.code, 2) << last.err;
    EXPECT_NE(last.err.find("no older checkpoint"), std::string::npos) << last.err;
    EXPECT_TRUE(fs::exists(checkpoints / "step-00000020"));
  }
}

TEST(Resume, ReportsAnUnfinishedCheckpoint) {
  const Workplace place;
  ASSERT_EQ(run(place, {"--ranks", "1", "train.steps=10"}).code, 0);
  fs::resize_file(place.out() / "checkpoints/step-00000010/rank-00000.bin", 100);
  const Ended resumed = run(place, {"--ranks", "1", "train.steps=10", "--resume"});
  EXPECT_EQ(resumed.code, 0) << resumed.err;
  ASSERT_EQ(resumed.lines().size(), 1u) << resumed.err;
  EXPECT_NE(resumed.lines()[0].find("hawser: skipped: "), std::string::npos);
  EXPECT_NE(resumed.lines()[0].find("truncated file"), std::string::npos) << resumed.err;
}

// Every file below a folder, by relative path, with its bytes.
std::map<std::string, std::string> contents(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream in(entry.path(), std::ios::binary);
    files[fs::relative(entry.path(), folder).string()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return files;
}

TEST(Resume, RejectsARunWithOnlyCorruptCheckpoints) {
  const Words same = {"train.evaluate_every=4", "optimizer.schedule=constant", "checkpoint.keep_last=3"};
  struct Case {
    const char *name, *ranks;
    std::function<void(const fs::path& step)> damage;
  };
  const std::vector<Case> cases = {
      {"truncated", "2",
       [](const fs::path& step) {
         // Not in place: best is a hard link to the same file.
         const fs::path file = step / "rank-00000.bin";
         fs::copy_file(file, step / "short");
         fs::resize_file(step / "short", fs::file_size(file) - 1);
         fs::rename(step / "short", file);
       }},
      {"manifest removed", "1", [](const fs::path& step) { fs::remove(step / "manifest.json"); }},
      {"file removed", "1", [](const fs::path& step) { fs::remove(step / "rank-00000.bin"); }},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Workplace place;
    const Words words = with(same, {"--ranks", c.ranks}), again = with(words, {"train.steps=20"});
    ASSERT_EQ(run(place, with(again, {"output=whole"})).code, 0);
    ASSERT_EQ(run(place, with(words, {"train.steps=16"})).code, 0);
    std::vector<std::string> steps;
    for (const auto& entry : fs::directory_iterator(place.out() / "checkpoints")) {
      if (!entry.path().filename().string().starts_with("step-")) continue;
      steps.push_back(entry.path().filename().string());
      c.damage(entry.path());
    }
    std::sort(steps.rbegin(), steps.rend());
    ASSERT_EQ(steps.size(), 3u);
    fs::copy(place.out(), place.out("kept"), fs::copy_options::recursive);

    const auto before = contents(place.out());
    const Ended rejected = run(place, with(again, {"--resume"}));
    EXPECT_EQ(rejected.code, 2) << rejected.err;
    const auto lines = rejected.lines();
    ASSERT_EQ(lines.size(), 4u) << rejected.err;
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_TRUE(lines[i].starts_with("hawser: skipped: out/checkpoints/" + steps[i])) << lines[i];
    }
    const std::string& last = lines[3];
    EXPECT_NE(last.find("out/checkpoints: none of the checkpoints is complete: " + steps[0] + ", " + steps[1] + ", " +
                        steps[2] + "; try `cp -r "),
              std::string::npos)
        << last;
    const auto after = contents(place.out());
    for (const auto& [file, bytes] : before) {
      ASSERT_TRUE(after.contains(file)) << file;
      EXPECT_TRUE(after.at(file) == bytes) << file << " has other content";
    }
    EXPECT_FALSE(fs::exists(place.out() / "earlier-1"));

    // The first suggestion: the best checkpoint, from which the run equals one without interruption.
    const auto from = last.find('`'), end = last.find('`', from + 1);
    ASSERT_NE(end, std::string::npos) << last;
    const std::string copy = "cd " + place.folder().string() + " && " + last.substr(from + 1, end - from - 1);
    ASSERT_EQ(std::system(copy.c_str()), 0) << copy;
    const Ended resumed = run(place, with(again, {"--resume"}));
    EXPECT_EQ(resumed.code, 0) << resumed.err;
    EXPECT_NE(resumed.err.find("resuming from "), std::string::npos) << resumed.err;
    expect_equal_runs(place.out("whole"), place.out(), 20);

    // The second: a new run, with the earlier run set aside.
    fs::remove_all(place.out());
    fs::rename(place.out("kept"), place.out());
    fs::remove_all(place.out() / "best");
    const Ended no_best = run(place, with(again, {"--resume"}));
    EXPECT_EQ(no_best.code, 2) << no_best.err;
    EXPECT_NE(no_best.err.find("; try without --resume to start from step 0 and move this run aside\n"),
              std::string::npos)
        << no_best.err;
    const Ended anew = run(place, again);
    EXPECT_EQ(anew.code, 0) << anew.err;
    EXPECT_TRUE(fs::exists(place.out() / "earlier-1/checkpoints" / steps[0]));
    EXPECT_TRUE(fs::exists(place.out() / "earlier-1/metrics.jsonl"));
    expect_equal_runs(place.out("whole"), place.out(), 20);
  }
}

TEST(Resume, KeepsTheOnlyRemainingBest) {
  const Workplace place;
  ASSERT_EQ(run(place, {"--ranks", "1", "train.steps=8", "train.evaluate_every=4"}).code, 0);
  const auto best = contents(place.out() / "best");
  ASSERT_FALSE(best.empty());
  fs::remove_all(place.out() / "checkpoints");
  const Ended anew = run(place, {"--ranks", "1", "train.steps=8", "train.evaluate_every=4", "--resume"});
  EXPECT_EQ(anew.code, 0) << anew.err;
  EXPECT_NE(anew.err.find("no checkpoint to resume from"), std::string::npos) << anew.err;
  EXPECT_TRUE(contents(place.out() / "earlier-1/best") == best);
  EXPECT_EQ(metrics(place.out() / "earlier-1").size(), 8u);
}

TEST(Resume, KeepsTheMetricsOfARunWithoutCheckpoints) {
  const Workplace place;
  ASSERT_EQ(run(place, {"--ranks", "1", "train.steps=8"}).code, 0);
  fs::remove_all(place.out() / "checkpoints");
  fs::remove_all(place.out() / "best");
  for (const bool resume : {false, true}) {
    Words words = {"--ranks", "1", "train.steps=3", "optimizer.warmup_steps=1", "checkpoint.every_steps=0"};
    if (resume) words.push_back("--resume");
    ASSERT_EQ(run(place, words).code, 0);
    fs::remove_all(place.out() / "checkpoints");
  }
  EXPECT_EQ(metrics(place.out() / "earlier-1").size(), 8u);
  EXPECT_EQ(metrics(place.out() / "earlier-2").size(), 3u);
  EXPECT_EQ(metrics(place.out()).size(), 3u);
}

// A run may end between the save of a checkpoint and its becoming the best.
TEST(Resume, MakesTheBestCheckpointBestAgain) {
  const Workplace place;
  const Words words = {"--ranks", "1", "train.evaluate_every=3", "checkpoint.every_steps=3", "checkpoint.keep_last=10"};
  ASSERT_EQ(run(place, with(words, {"train.steps=12"})).code, 0);
  const std::int64_t best = checkpoint::Checkpoint::open((place.out() / "best").string()).step();
  fs::remove_all(place.out() / "best");
  fs::copy(place.out() / "checkpoints/step-00000003", place.out() / "best");  // an older one
  ASSERT_NE(best, 3);
  const Words on = {"train.steps=15", "optimizer.learning_rate=3", "checkpoint.keep_last=1", "--resume"};
  ASSERT_EQ(run(place, with(words, on)).code, static_cast<int>(ExitCode::diverged));
  EXPECT_EQ(checkpoint::Checkpoint::open((place.out() / "best").string()).step(), best);
}

// `best` is a hard link of a checkpoint that is then found corrupt.
TEST(Resume, ReplacesACorruptBest) {
  const Workplace place;
  const Words words = {"--ranks", "1", "train.evaluate_every=3", "checkpoint.every_steps=3",
                       "optimizer.schedule=constant"};
  ASSERT_EQ(run(place, with(words, {"train.steps=12"})).code, 0);
  const std::string best = (place.out() / "best").string();
  ASSERT_EQ(checkpoint::Checkpoint::open(best).step(), 12);
  flip_middle(place.out() / "checkpoints/step-00000012/rank-00000.bin");
  const Ended resumed = run(place, with(words, {"train.steps=12", "--resume"}));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_NE(resumed.err.find("the corrupt best checkpoint was moved to "), std::string::npos) << resumed.err;
  EXPECT_TRUE(fs::exists(place.out() / "damaged-best"));
  Problems corrupt;
  checkpoint::Checkpoint now = checkpoint::Checkpoint::open(best);
  now.verify(corrupt);
  EXPECT_TRUE(corrupt.empty()) << corrupt.lines();
  EXPECT_EQ(now.step(), 12);
}

TEST(Resume, DoesNotCompareLossesOfDifferentValidationData) {
  const Workplace place;
  const Words words = {"--ranks", "1", "train.evaluate_every=3"};
  ASSERT_EQ(run(place, with(words, {"train.steps=9", "data.validation=train.jsonl"})).code, 0);
  const auto best = contents(place.out() / "best");
  const Ended on = run(place, with(words, {"train.steps=12", "optimizer.learning_rate=0.1", "--resume"}));
  ASSERT_EQ(on.code, 0) << on.err;
  EXPECT_NE(on.err.find("the validation data have changed, so losses cannot be compared; the best checkpoint so far "
                        "was moved to "),
            std::string::npos)
      << on.err;
  EXPECT_TRUE(contents(place.out() / "earlier-1/best") == best);
  EXPECT_EQ(checkpoint::Checkpoint::open((place.out() / "best").string()).step(), 12);
}

TEST(Resume, ReportsThatTheDataAreOthers) {
  const Workplace place;
  ASSERT_EQ(run(place, {"train.steps=5"}).code, 0);
  const auto message = [&](const Words& words) {
    const Ended ended = run(place, with(words, {"--resume"}));
    EXPECT_EQ(ended.code, 0) << ended.err;
    return ended.err;
  };
  EXPECT_EQ(message({"train.steps=6"}).find("training data"), std::string::npos);
  const std::string other = message({"train.steps=7", "data.train=valid.jsonl"});
  EXPECT_NE(other.find("hawser: the training data have changed: "), std::string::npos) << other;
  EXPECT_NE(other.find(" in 200 documents before, "), std::string::npos) << other;

  // The same lengths with other words.
  std::ifstream in(place.folder() / "valid.jsonl");
  std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto digit = text.find_first_of("12345678");
  --text[digit];
  std::ofstream(place.folder() / "other.jsonl") << text;
  const std::string content = message({"train.steps=8", "data.train=other.jsonl"});
  EXPECT_NE(content.find(" with different content"), std::string::npos) << content;
}

TEST(Resume, RejectsAnotherTokenizer) {
  const Workplace place;
  const auto write_tokenizer = [&](const std::string& more) {
    std::ofstream(place.folder() / "tokenizer.json")
        << R"({"model": {"type": "BPE", "vocab": {"a": 1, "b": 2)" + more + R"(}, "merges": []}})";
  };
  write_tokenizer("");
  const Words words = {"data.tokenizer=tokenizer.json"};
  const Ended first = run(place, with(words, {"train.steps=5"}));
  ASSERT_EQ(first.code, 0) << first.err;
  const auto resume = [&](const Words& more, int code) {
    const Ended ended = run(place, with(with(words, {"--resume"}), more));
    EXPECT_EQ(ended.code, code) << ended.err;
    return ended.err;
  };
  EXPECT_EQ(resume({"train.steps=6"}, 0).find("the tokenizer has changed"), std::string::npos);
  const auto saved = contents(place.out() / "checkpoints");
  write_tokenizer(R"(, "c": 3)");
  std::ofstream(place.folder() / "special_tokens_map.json") << "{}";
  const std::string other = resume({"train.steps=7"}, 2);
  EXPECT_NE(
      other.find("step-00000006: the tokenizer has changed: tokenizer.json has changed, special_tokens_map.json is "
                 "new at data.tokenizer, --set; try --set data.tokenizer="),
      std::string::npos)
      << other;
  EXPECT_TRUE(contents(place.out() / "checkpoints") == saved);
  fs::remove(place.folder() / "special_tokens_map.json");
  // What the message suggests: the files in the checkpoint are the run's own.
  const std::string own = "data.tokenizer=" + (place.out() / "checkpoints/step-00000006").string();
  EXPECT_EQ(resume({"train.steps=7", own}, 0).find("the tokenizer has changed"), std::string::npos);
}

// Each of these has the shapes of the run's model, and would train on silently to something else.
TEST(Resume, RejectsAModelOrPrecisionThatComputesSomethingElse) {
  const Workplace place;
  ASSERT_EQ(run(place, {"train.steps=5"}).code, 0);
  const auto saved = contents(place.out() / "checkpoints");
  const std::string model = read_file((place.folder() / "model.json").string());
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = model;
    EXPECT_NE(text.find(from), std::string::npos) << from;
    std::ofstream(place.folder() / "other.json") << text.replace(text.find(from), from.size(), to);
    return run(place, {"--resume", "train.steps=6", "model.config=other.json"});
  };
  const struct {
    const char *from, *to, *line;
  } cases[] = {
      {R"("num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8)",
       R"("num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16)",
       "num_attention_heads was 4 and is 2, num_key_value_heads was 2 and is 1, head_dim was 8 and is 16"},
      {R"("rms_norm_eps": 1e-5)", R"("rms_norm_eps": 1e-6)", "rms_norm_eps was 1e-05 and is 1e-06"},
      {R"("rope_theta": 10000.0)", R"("rope_theta": 500000.0)", "rope_theta was 10000.0 and is 500000.0"},
      {R"("rope_theta": 10000.0)", R"("rope_scaling": {"rope_type": "linear", "factor": 2.0})",
       "rope_scaling was null and is "},
  };
  for (const auto& c : cases) {
    const Ended ended = changed(c.from, c.to);
    EXPECT_EQ(ended.code, 2) << ended.err;
    EXPECT_NE(ended.err.find(std::string("step-00000005: the model has changed: ") + c.line), std::string::npos)
        << ended.err;
  }
  const Ended bf16 = run(place, {"--resume", "train.steps=6", "precision.compute=bf16"});
  EXPECT_EQ(bf16.code, 2) << bf16.err;
  EXPECT_NE(bf16.err.find("step-00000005: the compute dtype has changed (expected float32, got bfloat16) at "
                          "precision.compute, --set; try --set precision.compute=float32"),
            std::string::npos)
      << bf16.err;
  EXPECT_TRUE(contents(place.out() / "checkpoints") == saved);
  // The same model in the style of transformers 5.
  const Ended same =
      changed(R"("rope_theta": 10000.0)", R"("rope_parameters": {"rope_type": "default", "rope_theta": 10000.0})");
  EXPECT_EQ(same.code, 0) << same.err;
  EXPECT_EQ(newest_step(place.out()), 6);
}

// train.evaluate_batches counts text, independent of what a layout computes at a time.
TEST(Evaluation, ReadsTheSameTextOnAnyLayout) {
  const Workplace place;
  std::string expected;
  double loss = 0;
  for (const Words& layout : {Words{"--ranks", "1"}, Words{"--ranks", "1", "train.micro_batch_size=1"},
                              Words{"--ranks", "2"}, Words{"--ranks", "2", "parallel.context_parallel_degree=2"},
                              Words{"--ranks", "4", "train.micro_batch_size=1"}}) {
    const Ended ended =
        run(place, with(layout, {"train.steps=1", "optimizer.warmup_steps=0", "train.evaluate_batches=2"}));
    ASSERT_EQ(ended.code, 0) << ended.err;
    const auto from = ended.err.find(" over ", ended.err.find("step 1: validation loss"));
    const auto end = ended.err.find(" tokens", from);
    ASSERT_NE(end, std::string::npos) << ended.err;
    const std::string tokens = ended.err.substr(from, end - from);
    const double now = metrics(place.out()).back().validation_loss;
    if (expected.empty()) {
      expected = tokens;
      loss = now;
      // 8 sequences of up to 64 tokens: part of the set.
      EXPECT_LT(std::stoi(tokens.substr(6)), 8 * 64);
      EXPECT_GT(std::stoi(tokens.substr(6)), 4 * 64);
    }
    EXPECT_EQ(tokens, expected) << ended.err;
    EXPECT_NEAR(now, loss, 1e-5);
  }
}

TEST(NewRun, KeepsAnEarlierRun) {
  const Workplace place;
  ASSERT_EQ(run(place, {"train.steps=12"}).code, 0);
  const Ended second = run(place, {"train.steps=6"});
  EXPECT_EQ(second.code, 0) << second.err;
  EXPECT_NE(second.err.find("moved the files of an earlier run to "), std::string::npos) << second.err;
  EXPECT_EQ(verified_step(place.out()), 6);
  EXPECT_EQ(metrics(place.out()).size(), 6u);
  EXPECT_EQ(verified_step(place.out() / "earlier-1"), 12);
  const auto steps_of = [](const fs::path& folder) {
    return nlohmann::json::parse(read_file(folder / "recipe.json"))["train"]["steps"].get<int>();
  };
  EXPECT_EQ(steps_of(place.out()), 6);
  EXPECT_EQ(steps_of(place.out() / "earlier-1"), 12);
  EXPECT_EQ(metrics(place.out() / "earlier-1").size(), 12u);
}

}  // namespace resume_test
}  // namespace hawser::faults
