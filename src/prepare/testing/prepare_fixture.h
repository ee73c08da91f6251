// `stops_after`, an interrupted prepare, and `PrepareFixture`: a folder with sources and outputs, options with small
// blocks, generated texts and lines.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/cat.h"
#include "base/error.h"
#include "base/philox.h"
#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "prepare/prepare.h"
#include "prepare/testing/prepare_rejection.h"
#include "prepare/token_file.h"

namespace hawser::prepare {

// Prepares, with an interrupt at the poll of PrepareOptions::stop after `polls`. False: it was done before.
inline bool stops_after(PrepareOptions with, int polls) {
  int polled = 0;
  with.stop = [&] { return ++polled > polls; };
  try {
    prepare(with);
    return false;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::interrupted) << error.what();
    EXPECT_EQ(polled, polls + 1);
    return true;
  }
}

class PrepareFixture : public ::testing::Test {
 protected:
  PrepareOptions options(std::vector<std::string> train, const std::string& output = "out") {
    return {.train = std::move(train),
            .folder = folder_.path(""),
            .tokenizer = cat(testing::kSourceFolder, "/recipes/quickstart-tokenizer/tokenizer.json"),
            .output = folder_.path(output),
            .seed = 3,
            .threads = 2,
            .block_bytes = 2000};
  }
  std::string rejection(const PrepareOptions& with) { return rejection_of(with, folder_); }
  // Contents of all files but prepared.json, which has paths and modification times.
  std::map<std::string, std::string> files(const std::string& output) {
    std::map<std::string, std::string> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.path(output))) {
      if (entry.path().filename() != "prepared.json") found[entry.path().filename()] = read_file(entry.path());
    }
    return found;
  }
  std::vector<std::vector<std::int32_t>> documents(const std::string& prefix) {
    const TokenFile file(folder_.path(prefix));
    std::vector<std::vector<std::int32_t>> out;
    for (std::int64_t i = 0; i < file.documents(); ++i) {
      const std::int64_t begin = file.begin(file.first_sequence(i)), end = file.begin(file.first_sequence(i + 1));
      file.read(begin, out.emplace_back(end - begin));
    }
    return out;
  }
  static std::string text(int words, std::uint64_t seed) {
    const RandomStream random(seed, "text");
    std::string out;
    for (int i = 0; i < words; ++i) out += "word" + std::to_string(random.below(5000, i)) + (i % 11 == 10 ? "\n" : " ");
    return out;
  }
  std::string lines(int count, std::uint64_t seed) {
    std::string out;
    for (int i = 0; i < count; ++i) {
      std::string line = text(5 + i % 40, seed * 1000 + static_cast<std::uint64_t>(i));
      std::replace(line.begin(), line.end(), '\n', ' ');
      out += i % 5 == 4 ? "{\"input_ids\": [" + std::to_string(i % 7) + ",2,3], \"labels\": [-100,2,-100]}\n"
                        : "{\"text\": \"" + line + "\"}\n";
    }
    return out;
  }
  TemporaryFolder folder_;
};

}  // namespace hawser::prepare
