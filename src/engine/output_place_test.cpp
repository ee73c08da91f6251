#include "engine/output_place.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/testing/temporary_folder.h"

namespace hawser::engine {
namespace output_place_test {

namespace fs = std::filesystem;

class OutputPlace : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return (folder_.path() / fs::path(name)).string(); }
  void write(const std::string& name) const {
    fs::create_directories(fs::path(path(name)).parent_path());
    std::ofstream(path(name)) << name;
  }
  // What is wrong with an output, without its path; "" if it is accepted.
  std::string rejected(const std::string& output, const std::vector<Input>& inputs = {}) const {
    Problems problems;
    check_output(path(output), "output", inputs, problems);
    return problems.empty() ? "" : problems.lines().substr(path(output).size());
  }

  TemporaryFolder folder_;
};

constexpr const char* kInCheckpoint =
    ": in a checkpoint, which is removed with all files in it when others replace it (expected a folder of its own) at "
    "output";

TEST_F(OutputPlace, IsInNoCheckpoint) {
  for (const char* name : {"best", "checkpoints/step-00000005"}) {
    const std::string folder = cat("run/", name);
    for (const char* file : {"manifest.json", "rank-00000.bin"}) write(folder + "/" + file);
    EXPECT_EQ(rejected(folder), kInCheckpoint);
    EXPECT_EQ(rejected(folder + "/"), kInCheckpoint);
    EXPECT_EQ(rejected(folder + "/stage2"), kInCheckpoint);
    EXPECT_EQ(rejected(folder + "/not/yet/there"), kInCheckpoint);
    EXPECT_EQ(rejected(folder + "/../x"), "");
  }
  fs::create_symlink(path("run/best"), path("link"));
  EXPECT_EQ(rejected("link/stage2"), kInCheckpoint);
  EXPECT_EQ(rejected("run"), "");
  EXPECT_EQ(rejected("run/checkpoints/other"), "");
  // An interrupted save, and a folder of another program.
  write("cut/rank-00000.bin");
  write("extension/manifest.json");
  EXPECT_EQ(rejected("cut/x"), kInCheckpoint);
  EXPECT_EQ(rejected("extension/runs/x"), "");
}

// A name alone is in the working directory.
TEST_F(OutputPlace, ANameAloneIsInTheWorkingDirectory) {
  for (const char* file : {"manifest.json", "rank-00000.bin"}) write(cat("run/best/", file));
  const fs::path before = fs::current_path();
  for (const char* there : {"run/best", "run"}) {
    fs::current_path(path(there));
    for (const char* name : {"out", "./out"}) {
      Problems problems;
      check_output(name, "output", {}, problems);
      EXPECT_EQ(problems.lines(), there == std::string("run") ? "" : cat(name, kInCheckpoint)) << there;
    }
  }
  fs::current_path(before);
}

TEST_F(OutputPlace, IsNoInput) {
  for (const char* name : {"m/config.json", "m/model.safetensors", "m/merges.txt", "m/answers.jsonl", "prompts"})
    write(name);
  fs::create_symlink(path("m/model.safetensors"), path("weights"));
  const std::vector<Input> inputs = {{"--model", path("m")}, {"--prompts", path("prompts")}, {"--chat-template", ""}};
  const std::string model = ": a file of --model (expected another file) at output";
  for (const char* name : {"m/config.json", "m/model.safetensors", "m/merges.txt", "weights"})
    EXPECT_EQ(rejected(name, inputs), model) << name;
  EXPECT_EQ(rejected("prompts", inputs), ": the same file as --prompts (expected another file) at output");
  for (const char* name : {"m/answers.jsonl", "m/new.json", "m", "absent"}) EXPECT_EQ(rejected(name, inputs), "");
}

}  // namespace output_place_test
}  // namespace hawser::engine
