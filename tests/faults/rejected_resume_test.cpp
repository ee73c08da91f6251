// A resume that is rejected, or has no step to run, changes nothing in the run's folder.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "base/cat.h"
#include "harness.h"

namespace hawser::faults {
namespace rejected_resume_test {

using Words = std::vector<std::string>;

// Every file below a folder, by relative path, with its bytes and time.
std::map<std::string, std::pair<std::string, fs::file_time_type>> contents(const fs::path& folder) {
  std::map<std::string, std::pair<std::string, fs::file_time_type>> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    files[fs::relative(entry.path(), folder).string()] = {read_file(entry.path().string()), entry.last_write_time()};
  }
  return files;
}

class RejectedResume : public ::testing::Test {
 protected:
  void SetUp() override {
    write_tokenizer("");
    const Ended first = run(place_, {"train.steps=5", "data.tokenizer=tokenizer.json"});
    ASSERT_EQ(first.code, 0) << first.err;
    std::ofstream(place_.folder() / "train.jsonl", std::ios::app) << "{\"input_ids\": [1, 2, 3, 4, 5]}\n";
  }

  void write_tokenizer(const std::string& more) {
    std::ofstream(place_.folder() / "tokenizer.json")
        << R"({"model": {"type": "BPE", "vocab": {"a": 1, "b": 2)" + more + R"(}, "merges": []}})";
  }

  // `lines`: the beginnings of all lines that the resume prints.
  void rejected(Words words, const Words& lines) {
    for (const char* more : {"--resume", "train.steps=6"}) words.emplace_back(more);
    words.emplace_back("data.tokenizer=tokenizer.json");
    const auto before = contents(place_.out());
    const Ended ended = run(place_, words);
    EXPECT_EQ(ended.code, 2) << ended.err;
    const auto got = ended.lines();
    ASSERT_EQ(got.size(), lines.size()) << ended.err;
    for (std::size_t i = 0; i < lines.size(); ++i) {
      EXPECT_TRUE(got[i].starts_with("hawser: " + lines[i])) << got[i] << "\n" << lines[i];
    }
    const auto after = contents(place_.out());
    for (const auto& [file, content] : before) {
      ASSERT_TRUE(after.contains(file)) << file;
      EXPECT_TRUE(after.at(file) == content) << file << " was written";
    }
    EXPECT_EQ(after.size(), before.size());
  }

  Workplace place_;
  const std::string step_ = "out/checkpoints/step-00000005: ";
};

TEST_F(RejectedResume, WritesNothing) {
  const std::string batch = step_ +
                            "the checkpoint is from a run with another batch size (expected 4, got 8) at "
                            "train.global_batch_size, --set; try --set "
                            "train.global_batch_size=4, or --set output=... for a new run";
  for (const char* ranks : {"1", "2"}) rejected({"train.global_batch_size=8", "--ranks", ranks}, {batch});

  // All at once, with mistakes that have nothing to do with the checkpoint.
  std::string model = read_file((place_.folder() / "model.json").string());
  const std::string eps = R"("rms_norm_eps": 1e-5)";
  std::ofstream(place_.folder() / "other.json") << model.replace(model.find(eps), eps.size(), R"("rms_norm_eps": 1)");
  write_tokenizer(R"(, "c": 3)");
  rejected({"train.global_batch_size=8", "model.config=other.json", "precision.compute=bf16", "train.stepz=1"},
           {"--set: unknown key at train.stepz", step_ + "the model has changed: rms_norm_eps was 1e-05 and is 1",
            step_ + "the compute dtype has changed (expected float32, got bfloat16)", batch,
            step_ + "the tokenizer has changed: tokenizer.json has changed"});
  // A setting that is wrong is not compared.
  write_tokenizer("");
  rejected({"train.global_batch_size=x", "precision.compute=bf17"},
           {"--set: unknown value (expected auto, float32, bf16 or fp8, got bf17) at precision.compute",
            "--set: wrong type (expected a whole number of at least 1, got x) at train.global_batch_size"});
}

TEST_F(RejectedResume, WritesNothingWithoutACompleteCheckpoint) {
  flip(place_.out() / "checkpoints/step-00000005/tokenizer.json", 3);
  rejected({}, {"out/checkpoints/step-00000005/tokenizer.json: ", "out/checkpoints: no older checkpoint; try "});
  fs::remove(place_.out() / "checkpoints/step-00000005/manifest.json");
  rejected({}, {"skipped: out/checkpoints/step-00000005", "out/checkpoints: none of the checkpoints is complete: "});
}

// Whatever the recipe asks for: no step is trained with it. What is missing is written again, as it was.
TEST(FinishedResume, WritesWhatIsMissingAlone) {
  const Workplace place;
  const Words one = {"--ranks", "1", "train.evaluate_every=3", "report.tensorboard=true"};
  const auto finished = [&](Words words) {
    words.insert(words.end(), one.begin(), one.end());
    words.emplace_back("--resume");
    const Ended ended = run(place, words);
    EXPECT_EQ(ended.code, 0) << ended.err;
    EXPECT_NE(ended.err.find("nothing to do: 6 of "), std::string::npos) << ended.err;
  };
  Words first = one;
  first.emplace_back("train.steps=6");
  ASSERT_EQ(run(place, first).code, 0);
  const auto before = contents(place.out());
  // Besides token files, which are those of other validation data for the evaluation.
  const auto is_unchanged = [&](const Words& besides = {}) {
    auto expected = before, after = contents(place.out());
    for (auto* files : {&expected, &after}) {
      std::erase_if(*files, [&](const auto& file) {
        return file.first.starts_with("data/") || std::ranges::find(besides, file.first) != besides.end();
      });
    }
    ASSERT_EQ(after.size(), expected.size());
    for (const auto& [file, content] : expected) EXPECT_TRUE(after[file] == content) << file << " was written";
  };
  const Words others = {"train.steps=5", "optimizer.learning_rate=1"};
  for (const Words& words : {Words{"train.steps=6"}, others, Words{"train.steps=6", "data.validation=train.jsonl"}}) {
    SCOPED_TRACE(words.back());
    finished(words);
    is_unchanged();
  }

  const fs::path recipe = place.out() / "recipe.json", page = place.out() / "report.html";
  fs::remove(recipe);
  fs::remove(page);
  finished(others);
  EXPECT_TRUE(read_file(recipe.string()) == before.at("recipe.json").first);
  EXPECT_FALSE(fs::exists(page)) << "with settings that the run did not have";
  finished({"train.steps=6"});
  EXPECT_NE(read_file(page.string()).find("6 / 6"), std::string::npos);
  is_unchanged({"recipe.json", "report.html"});
  // The page of a run that was killed after its last checkpoint.
  std::ofstream(page) << "<!doctype html>\n<meta http-equiv=\"refresh\" content=\"30\">\n";
  finished({"train.steps=6"});
  EXPECT_NE(read_file(page.string()).find("6 / 6"), std::string::npos);
}

}  // namespace rejected_resume_test
}  // namespace hawser::faults
