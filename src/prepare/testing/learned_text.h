// What a conversation's answers are, as text: for tests of masks.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "prepare/answers.h"
#include "prepare/testing/bytes_tokenizer.h"
#include "prepare/token_file.h"

namespace hawser::prepare {

inline const std::filesystem::path kRoot = testing::kSourceFolder;

inline std::shared_ptr<const text::chat::ChatTemplate> named(const std::string& name) {
  Problems problems;
  auto found = text::chat::open_chat_template(name, "", "", "", problems);
  EXPECT_TRUE(found) << problems.lines();
  return found;
}

// The labeled tokens of a line, as text, separated by "|"; "//" between answers.
class Learned {
 public:
  Learned(const std::string& tokenizer, const std::string& name)
      : tokenizer_(text::load_tokenizer((kRoot / tokenizer).string())), encoder_(*tokenizer_, named(name), {}) {}

  std::string operator()(const std::string& text) const {
    Problems problems;
    auto line = parse_line(text, {.file = "f", .number = 7}, problems);
    if (!line || !encoder_.encode(*line, {.file = "f", .number = 7}, problems)) return problems.lines();
    EXPECT_EQ(line->ids.size(), line->labels.size());
    std::string out;
    for (std::size_t i = 0; i < line->ids.size(); ++i) {
      EXPECT_TRUE(line->labels[i] == line->ids[i] || line->labels[i] == kIgnoredLabel);
      if (line->labels[i] == kIgnoredLabel) continue;
      if (i > 0 && line->labels[i - 1] == kIgnoredLabel && !out.empty()) out += "//";
      out += tokenizer_->decode(std::span(&line->ids[i], 1)) + "|";
    }
    return out;
  }

 private:
  std::unique_ptr<text::Tokenizer> tokenizer_;
  AnswerEncoder encoder_;
};

inline const std::string kQuickstart = "recipes/quickstart-tokenizer/tokenizer.json";
inline const std::string kTwoTurns =
    R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "bc"},
                     {"role": "user", "content": "d"}, {"role": "assistant", "content": "e"}]})";

// Text learned of a conversation with a template and these special tokens, answers separated by " / ".
inline std::string learned_by(const std::string& source, const std::vector<std::string>& special,
                              const std::string& text) {
  const TemporaryFolder folder;
  const auto tokenizer = text::load_tokenizer(folder.write("t.json", tokenizer_of_bytes(special)));
  const auto chat = std::make_shared<const text::chat::ChatTemplate>(
      source, std::map<std::string, std::string>{{"eos_token", "<e>"}}, "t.jinja");
  Problems problems;
  auto line = parse_line(text, {.file = "f"}, problems);
  if (!line || !AnswerEncoder(*tokenizer, chat, {}).encode(*line, {.file = "f"}, problems)) return problems.lines();
  std::string out;
  for (std::size_t i = 0; i < line->ids.size(); ++i) {
    if (line->labels[i] == kIgnoredLabel) continue;
    if (i > 0 && line->labels[i - 1] == kIgnoredLabel && !out.empty()) out += " / ";
    out += tokenizer->surface(line->ids[i]);
  }
  return out;
}

inline const std::vector<std::string> kChatMl = {"<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>", "<END>"};
inline const std::string kAsk = R"({"role": "user", "content": "q"}, )";
inline const std::string kCall =
    R"({"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function":
        {"name": "get", "arguments": {"days": 3}}}]}, {"role": "tool", "name": "get", "content": "r"}, )";
inline const std::string kSay = R"({"role": "assistant", "content": "a"})";

inline std::string line_with(const std::string& messages) {
  return R"({"messages": [)" + messages + "]}";
}

}  // namespace hawser::prepare
