// For tests: runs the program as a user does, through a shell, in a temporary folder, without variables set for it.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/cat.h"
#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"

namespace hawser::testing {

namespace fs = std::filesystem;

struct Ran {
  int code = 0;
  std::string out, err;
};

inline fs::path tiny(const std::string& name) {
  return fs::path(testing::kSourceFolder) / "tests/golden/tiny" / name;
}

inline nlohmann::json json_of(const fs::path& path) {
  return nlohmann::json::parse(read_file(path));
}

inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// Forty documents of 5 to 27 ids below 96, the vocabulary of the tiny models, as JSONL.
inline std::string forty_documents() {
  std::string lines;
  for (int line = 0; line < 40; ++line) {
    nlohmann::json ids = nlohmann::json::array();
    for (int i = 0; i < 5 + line % 23; ++i) ids.push_back((line * 31 + i * i * 7) % 96);
    lines += nlohmann::json{{"input_ids", ids}}.dump() + "\n";
  }
  return lines;
}

class Binary : public ::testing::Test {
 protected:
  // A name that looks like one of the Hub sends no request; tests of pulls set another value.
  Binary() { ::setenv("HF_HUB_OFFLINE", "1", 1); }

  Ran hawser(const std::string& arguments) { return shell(std::string(testing::kHawser) + " " + arguments); }

  Ran shell(const std::string& command) {
    const std::string line = "cd " + folder_.path() + " && " + command + " 2>err </dev/null";
    Ran ran;
    FILE* pipe = popen(line.c_str(), "r");
    if (pipe == nullptr) throw std::runtime_error("no shell");
    std::array<char, 4096> bytes{};
    for (std::size_t size = 0; (size = fread(bytes.data(), 1, bytes.size(), pipe)) > 0;) {
      ran.out.append(bytes.data(), size);
    }
    const int status = pclose(pipe);
    ran.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    ran.err = folder_.read("err");
    return ran;
  }

  // The program on a terminal of `columns`: both outputs are in `out`, with "\n" at the end of lines.
  Ran on_terminal(const std::string& arguments, int columns = 100) {
    write("on_terminal.sh",
          "stty cols " + std::to_string(columns) + " rows 40\n" + testing::kHawser + " " + arguments + "\n");
    Ran ran = shell("script -qec 'sh on_terminal.sh' /dev/null");
    std::erase(ran.out, '\r');
    return ran;
  }

  void write(const std::string& file, const std::string& content) { folder_.write(file, content); }

  // The command succeeds and prints one line that is one JSON object.
  nlohmann::json json(const std::string& arguments) {
    const Ran ran = hawser(arguments);
    EXPECT_EQ(ran.code, 0) << arguments << "\n" << ran.err;
    EXPECT_EQ(lines_of(ran.out).size(), 1u) << arguments << "\n" << ran.out;
    const auto parsed = nlohmann::json::parse(ran.out, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(parsed.is_object()) << arguments << "\n" << ran.out << ran.err;
    return parsed;
  }

  // The command is rejected with exactly these lines and prints nothing else.
  void rejected(const std::string& arguments, const std::vector<std::string>& lines) {
    const Ran ran = hawser(arguments);
    EXPECT_EQ(ran.code, 2) << arguments << "\n" << ran.err;
    EXPECT_EQ(ran.out, "") << arguments;
    std::string expected;
    for (const std::string& line : lines) expected += "hawser: " + line + "\n";
    EXPECT_EQ(ran.err, expected) << arguments;
  }

  // A copy of a golden model and its data, for tests that break it.
  std::string copy_of(const std::string& name, const std::string& as) {
    fs::copy(tiny(name), folder_ / as, fs::copy_options::recursive);
    return as;
  }

  TemporaryFolder folder_;
};

// A byte-level tokenizer without merges: one token per character, in ASCII order from '!', the space (as "Ġ") last.
inline std::string letters_tokenizer() {
  nlohmann::json vocabulary = nlohmann::json::object();
  for (int c = '!'; c <= '~'; ++c) vocabulary[std::string(1, static_cast<char>(c))] = c - '!';
  vocabulary["\u0120"] = '~' - '!' + 1;
  nlohmann::json tokenizer{{"version", "1.0"},      {"truncation", nullptr},
                           {"padding", nullptr},    {"added_tokens", nlohmann::json::array()},
                           {"normalizer", nullptr}, {"post_processor", nullptr}};
  const nlohmann::json byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  tokenizer["pre_tokenizer"] = byte_level;
  tokenizer["decoder"] = byte_level;
  tokenizer["model"] = {
      {"type", "BPE"},          {"dropout", nullptr},     {"unk_token", nullptr}, {"fuse_unk", false},
      {"byte_fallback", false}, {"ignore_merges", false}, {"vocab", vocabulary},  {"merges", nlohmann::json::array()}};
  return tokenizer.dump();
}

// A safetensors file, split into header and data.
struct SafetensorsParts {
  nlohmann::json header;
  std::string data;

  static SafetensorsParts read(const fs::path& path) {
    const std::string bytes = read_file(path);
    std::uint64_t size = 0;
    std::memcpy(&size, bytes.data(), sizeof size);
    return {nlohmann::json::parse(bytes.substr(8, size)), bytes.substr(8 + size)};
  }
  void write(const fs::path& path) const {
    const std::string text = header.dump();
    const std::uint64_t size = text.size();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&size), sizeof size);
    out << text << data;
  }
};

}  // namespace hawser::testing
