// Conversations with tools by the built-in templates that write them: texts and answers of
// tools/golden/make_tool_chats.py, from the models' published templates.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "prepare/answers.h"
#include "prepare/testing/bytes_tokenizer.h"
#include "prepare/token_file.h"

namespace hawser::prepare {
namespace tool_chats_test {

using Json = nlohmann::ordered_json;
using Segments = std::vector<std::string>;

const Json& golden() {
  static const Json kGolden =
      Json::parse(read_file(testing::kSourceFolder + std::string("/tests/golden/chat/tools.json")));
  return kGolden;
}

// An encoder with a built-in template and a tokenizer of bytes and these special tokens.
class Encoder {
 public:
  Encoder(const std::string& name, const std::vector<std::string>& special) {
    const TemporaryFolder folder;
    tokenizer_ = text::load_tokenizer(folder.write("tokenizer.json", tokenizer_of_bytes(special)));
    Problems problems;
    const auto chat = text::chat::open_chat_template(name, "", "", "", problems);
    encoder_ = std::make_unique<AnswerEncoder>(*tokenizer_, chat, problems);
  }

  // The text of a line: what the model is given, what it learns, what it is given, and so on. Its problems if it is
  // rejected.
  Segments operator()(const Json& line) const {
    Problems problems;
    auto read = parse_line(line.dump(), {.file = "f"}, problems);
    if (!read || !encoder_->encode(*read, {.file = "f"}, problems)) return {problems.lines()};
    Segments out{""};
    for (std::size_t i = 0; i < read->ids.size(); ++i) {
      const bool learned = read->labels[i] != kIgnoredLabel;
      if (learned != (out.size() % 2 == 0)) out.emplace_back();
      out.back() += tokenizer_->surface(read->ids[i]);
    }
    if (out.size() % 2 == 0) out.emplace_back();
    return out;
  }

 private:
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<AnswerEncoder> encoder_;
};

// Compares all conversations; returns how many are written.
int check(const std::string& name, const std::vector<std::string>& more_special = {}) {
  std::vector<std::string> special = golden()["templates"][name]["special"];
  special.insert(special.end(), more_special.begin(), more_special.end());
  const Encoder encoder(name, special);
  int written = 0;
  for (const auto& [kind, expected] : golden()["expected"][name].items()) {
    const Segments segments = encoder(golden()["conversations"][kind]);
    if (expected.is_null()) {
      EXPECT_EQ(segments.size(), 1u) << name << ", " << kind << ": " << Json(segments).dump(1);
      continue;
    }
    EXPECT_EQ(segments, expected.get<Segments>()) << name << ", " << kind;
    ++written;
  }
  return written;
}

TEST(ToolChats, TextsAndAnswersAreThoseOfThePublishedTemplates) {
  EXPECT_EQ(check("chatml"), 20);
  EXPECT_EQ(check("qwen-2.5"), 20);
  EXPECT_EQ(check("qwen-3"), 22);
  EXPECT_EQ(check("llama-3.1"), 16);
  EXPECT_EQ(check("mistral-v3"), 17);
}

// Tokenizers of Qwen have tokens for the tags, Hermes' have special ones: what is learned is the same.
TEST(ToolChats, AnswersDoNotDependOnTokensForTags) {
  for (const char* name : {"chatml", "qwen-2.5", "qwen-3"}) {
    EXPECT_GE(check(name, {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>"}), 20);
  }
}

// What is rejected says why.
TEST(ToolChats, RejectWhatAFormatCannotWrite) {
  const auto problem = [](const std::string& name, const std::string& kind) {
    const Encoder encoder(name, golden()["templates"][name]["special"]);
    return encoder(golden()["conversations"][kind]).front();
  };
  const auto find = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  find(problem("llama-3.1", "several calls"),
       "a message has several tool calls, and this format has one in a message at line 1");
  for (const char* name : {"llama-3.1", "mistral-v3"}) {
    find(problem(name, "content and a call"),
         "f: the chat template does not write the content of messages[1] (assistant) at line 1");
  }
  find(problem("mistral-v3", "long ids"), "the id of a tool call must have nine letters or digits at line 1");
  find(problem("qwen-2.5", "thoughts"), "the chat template does not write the thoughts (reasoning_content) of");
}

// Calls without the frame {"function": ...}, and with their keys in any order.
TEST(ToolChats, CallsMayHaveNoFrame) {
  for (const auto& [name, of] : golden()["templates"].items()) {
    const Encoder encoder(name, of["special"]);
    Json line = golden()["conversations"]["one call"];
    const Segments framed = encoder(line);
    ASSERT_GT(framed.size(), 1u) << name << ": " << framed.front();
    Json& call = line["messages"][1]["tool_calls"][0];
    call = {{"id", call["id"]}, {"arguments", call["function"]["arguments"]}, {"name", call["function"]["name"]}};
    EXPECT_EQ(encoder(line), framed) << name;
  }
}

}  // namespace tool_chats_test
}  // namespace hawser::prepare
