// Commands reject a checkpoint whose small files changed since the save, or whose manifest is missing.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "harness.h"

namespace hawser::faults {
namespace damaged_test {

// One letter for each id of the tiny model.
std::string tokenizer(char first = 'A') {
  nlohmann::json vocabulary = nlohmann::json::object();
  for (int id = 0; id < 60; ++id) vocabulary[std::string(1, static_cast<char>(first + id))] = id;
  const nlohmann::json byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  return nlohmann::json{
      {"version", "1.0"},
      {"added_tokens", nlohmann::json::array()},
      {"pre_tokenizer", byte_level},
      {"decoder", byte_level},
      {"model", {{"type", "BPE"}, {"unk_token", nullptr}, {"vocab", vocabulary}, {"merges", nlohmann::json::array()}}}}
      .dump();
}

class CorruptCheckpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directory(place_.folder() / "tokenizer");
    write(place_.folder() / "tokenizer/tokenizer.json", tokenizer());
    write(place_.folder() / "tokenizer/tokenizer_config.json", "{\"note\": 1}");
    const Ended ended = run(place_, {"--ranks", "1", "train.steps=10", "data.tokenizer=tokenizer"});
    ASSERT_EQ(ended.code, 0) << ended.err;
    ASSERT_TRUE(fs::exists(newest() / "tokenizer_config.json"));
  }

  static void write(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }
  fs::path newest() const { return place_.out() / "checkpoints/step-00000010"; }
  Ended hawser(const std::vector<std::string>& words) const {
    Fit command(place_, Fit::Command{.words = words});
    return command.wait();
  }
  std::vector<std::vector<std::string>> readers(const std::string& model) const {
    return {{"eval", "--model", model, "--data", "valid.jsonl", "--sequence-length", "64", "--ranks", "1"},
            {"generate", "--model", model, "--prompt-ids", "3,6,9", "--max-tokens", "4"}};
  }

  const Workplace place_;
};

TEST_F(CorruptCheckpoint, AttachedFilesAreVerifiedBeforeUse) {
  for (const auto& words : readers("out")) {
    const Ended sound = hawser(words);
    ASSERT_EQ(sound.code, 0) << sound.err;
  }
  struct Case {
    const char* file;
    std::string text;  // "": removed
    const char* message;
  };
  // The first has the same length: different letters for the ids.
  for (const Case& c :
       {Case{"tokenizer.json", tokenizer('B'), "checksum mismatch: the file changed since it was saved"},
        Case{"tokenizer.json", "{", "truncated file (expected "},
        Case{"tokenizer.json", "", "a file of the checkpoint is missing"},
        Case{"tokenizer_config.json", "{\"note\": 2}", "checksum mismatch"},
        Case{"tokenizer_config.json", "", "a file of the checkpoint is missing"}}) {
    SCOPED_TRACE(std::string(c.file) + ": " + c.message);
    const fs::path file = newest() / c.file, kept = place_.folder() / "kept";
    fs::rename(file, kept);
    if (!c.text.empty()) write(file, c.text);
    for (const std::string model : {"out", "out/checkpoints/step-00000010"}) {
      for (const auto& words : readers(model)) {
        const Ended rejected = hawser(words);
        EXPECT_EQ(rejected.code, 2) << rejected.err;
        ASSERT_EQ(rejected.lines().size(), 1u) << rejected.err;
        EXPECT_NE(rejected.err.find(std::string("step-00000010/") + c.file + ": " + c.message), std::string::npos)
            << rejected.err;
        EXPECT_NE(rejected.err.find("; try out/checkpoints/step-00000005\n"), std::string::npos) << rejected.err;
      }
    }
    fs::rename(kept, file);
  }
}

TEST_F(CorruptCheckpoint, ACheckpointWithoutItsManifestIsRejectedAsOne) {
  fs::remove(newest() / "manifest.json");
  auto commands = readers("out/checkpoints/step-00000010");
  commands.push_back({"export", "out/checkpoints/step-00000010", "exported"});
  for (const auto& words : commands) {
    SCOPED_TRACE(words[0]);
    const Ended rejected = hawser(words);
    EXPECT_EQ(rejected.code, 2) << rejected.err;
    ASSERT_EQ(rejected.lines().size(), 1u) << rejected.err;
    EXPECT_NE(rejected.err.find("out/checkpoints/step-00000010/manifest.json: no manifest: the save was not finished; "
                                "try out/checkpoints/step-00000005\n"),
              std::string::npos)
        << rejected.err;
  }
}

// Nothing is moved, and nothing starts over.
TEST_F(CorruptCheckpoint, TheOnlyOneIsAnError) {
  fs::remove_all(newest().parent_path() / "step-00000005");
  const fs::path file = newest() / "rank-00000.bin";
  std::string bytes = read_file(file);
  ASSERT_FALSE(bytes.empty());
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  write(file, bytes);
  const Ended rejected =
      run(place_, {"--ranks", "1", "train.steps=11", "data.tokenizer=tokenizer", "--resume", "--json"});
  EXPECT_EQ(rejected.code, 2) << rejected.err;
  EXPECT_NE(rejected.err.find("checksum mismatch"), std::string::npos) << rejected.err;
  EXPECT_TRUE(read_file(file) == bytes);
}

TEST_F(CorruptCheckpoint, OneFurtherStepHasARate) {
  const Ended one = run(place_, {"--ranks", "1", "train.steps=11", "data.tokenizer=tokenizer", "--resume", "--json"});
  ASSERT_EQ(one.code, 0) << one.err;
  const auto json = nlohmann::json::parse(one.out);
  EXPECT_EQ(json["steps"], 11);
  EXPECT_GT(json["tokens_per_second"].get<double>(), 0);
}

}  // namespace damaged_test
}  // namespace hawser::faults
