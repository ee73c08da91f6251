#include "generate/prompts.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"

namespace hawser::generate {
namespace prompts_test {

namespace fs = std::filesystem;
using text::chat::ChatTemplate;

class Prompts : public ::testing::Test {
 protected:
  void SetUp() override {
    tokenizer_ = text::load_tokenizer((fs::path(testing::kSourceFolder) / "recipes/quickstart-tokenizer").string());
    for (const auto& one : text::chat::named_templates()) {
      if (one.name == std::string("chatml")) {
        template_ = std::make_shared<const ChatTemplate>(one.source, one.tokens, "chatml");
      }
    }
  }

  std::string write(const std::string& name, const std::string& text) { return folder_.write(name, text); }
  PromptEncoder encoder(bool with_template = true) const {
    return {"DIR", tokenizer_.get(), with_template ? template_ : nullptr, {}, 0, tokenizer_->vocab_size()};
  }
  std::vector<std::int32_t> encoded(const std::string& text, bool special) const {
    std::vector<std::int32_t> ids;
    tokenizer_->encode(text, ids, special);
    return ids;
  }

  TemporaryFolder folder_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::shared_ptr<const ChatTemplate> template_;
};

TEST_F(Prompts, LinesOfEveryKind) {
  const std::string path = write("a.jsonl",
                                 "{\"prompt\": \"Once upon\"}\n"
                                 "\n"
                                 "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}], \"id\": 7}\r\n"
                                 "{\"input_ids\": [5, 6, 7], \"labels\": \"anything\"}\n"
                                 "{\"prompt\": [{\"role\": \"user\", \"content\": \"Hello\"}], \"completion\": []}\n"
                                 "{\"prompt\": \"\"}");
  Problems problems;
  const std::vector<Prompt> prompts = read_prompts(path, encoder(), problems);
  ASSERT_TRUE(problems.empty()) << problems.lines();
  ASSERT_EQ(prompts.size(), 5u);
  const std::string chat = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(prompts[0].ids, encoded("Once upon", true));
  EXPECT_EQ(prompts[0].line, 1);
  EXPECT_FALSE(prompts[0].chat);
  EXPECT_NE(prompts[1].text.find(chat), std::string::npos) << prompts[1].text;
  EXPECT_EQ(prompts[1].ids, encoded(prompts[1].text, false));
  EXPECT_EQ(prompts[1].line, 3);
  EXPECT_TRUE(prompts[1].chat);
  EXPECT_EQ(prompts[2].ids, (std::vector<std::int32_t>{5, 6, 7}));
  EXPECT_EQ(prompts[2].text, "");
  EXPECT_EQ(prompts[3].ids, prompts[1].ids);
  EXPECT_EQ(prompts[4].ids, std::vector<std::int32_t>{0}) << "the token that begins a text";
  EXPECT_EQ(prompts[4].line, 6);
}

TEST_F(Prompts, ALineMeansWhatItMeansInTraining) {
  const std::string hello = "[{\"role\": \"user\", \"content\": \"Hello\"}]";
  const std::string path = write("a.jsonl", "{\"system\": \"Answer in French.\", \"messages\": " + hello +
                                                "}\n{\"system_prompt\": \"Answer in French.\", \"prompt\": " + hello +
                                                "}\n{\"system\": null, \"messages\": " + hello +
                                                "}\n{\"input_ids\": [0, 5, 6, 7, 0, 0], \"attention_mask\": [0, 1, "
                                                "1, 1, 0, 0]}\n");
  Problems problems;
  const std::vector<Prompt> prompts = read_prompts(path, encoder(), problems);
  ASSERT_TRUE(problems.empty()) << problems.lines();
  ASSERT_EQ(prompts.size(), 4u);
  const std::string system = "<|im_start|>system\nAnswer in French.<|im_end|>\n";
  const std::string chat = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(prompts[0].text, system + chat);
  EXPECT_EQ(prompts[1].text, system + chat);
  EXPECT_EQ(prompts[2].text, chat);
  EXPECT_EQ(prompts[3].ids, (std::vector<std::int32_t>{5, 6, 7}));

  write("twice.jsonl", "{\"system\": \"a\", \"messages\": [{\"role\": \"system\", \"content\": \"b\"}]}\n");
  EXPECT_TRUE(read_prompts(folder_.path("twice.jsonl"), encoder(), problems).empty());
  EXPECT_NE(problems.lines().find("system message given twice (expected once) at line 1, system"), std::string::npos)
      << problems.lines();
}

// What the template would leave out, or print as it is.
TEST_F(Prompts, WhatTrainingRejectsIsRejected) {
  const auto drops = std::make_shared<const ChatTemplate>(
      "{% for m in messages if m.role != 'developer' %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
      std::map<std::string, std::string>{}, "t");
  const PromptEncoder encoder("DIR", tokenizer_.get(), drops, {}, 0, tokenizer_->vocab_size());
  const auto problem = [&](const std::string& messages) {
    Problems problems;
    read_prompts(write("a.jsonl", "{\"messages\": [" + messages + "]}\n"), encoder, problems);
    std::string lines = problems.lines();
    const std::string file = folder_.path("a.jsonl");
    if (lines.starts_with(file)) lines.erase(0, file.size());
    return lines;
  };
  const std::string ask = R"({"role": "user", "content": "q"})";
  EXPECT_TRUE(problem(R"({"role": "critic", "content": "q"})").starts_with(": unknown role (expected "));
  EXPECT_EQ(problem(R"({"role": "developer", "content": "S"}, )" + ask),
            ": the chat template does not write messages[0] (developer) at line 1; try --chat-template with another "
            "name or file");
  EXPECT_EQ(
      problem(
          ask +
          R"(, {"role": "assistant", "content": "call g", "tool_calls": [{"function": {"name": "g", "arguments": {}}}]})")
          .substr(0, 67),
      ": the chat template does not write the tool calls of messages[1] at");
  EXPECT_EQ(problem(ask + R"(, {"role": "assistant", "content": "a", "reasoning_content": "t"}, )" + ask), "");
}

TEST_F(Prompts, NullCountsAsMissing) {
  Problems problems;
  const std::string path =
      write("a.jsonl", R"({"prompt": null, "messages": [{"role": "user", "content": "q"}], "input_ids": null})"
                       "\n");
  EXPECT_EQ(read_prompts(path, encoder(), problems).size(), 1u);
  EXPECT_TRUE(problems.empty()) << problems.lines();
}

// Held-out lines of training data are prompts: of a question the answer is left out.
TEST_F(Prompts, QuestionsAndConversationsOfTrainingData) {
  const std::string path = write("a.jsonl", R"({"instruction": "Say", "input": "it.", "output": "No."})"
                                            "\n"
                                            R"({"question": "Say it.", "answer": "No."})"
                                            "\n"
                                            R"({"conversations": [{"from": "human", "value": "Say it."}]})"
                                            "\n"
                                            R"({"messages": [{"role": "user", "content": "Say it."}, )"
                                            R"({"role": "assistant", "content": "No."}]})"
                                            "\n");
  Problems problems;
  const std::vector<Prompt> prompts = read_prompts(path, encoder(), problems);
  ASSERT_TRUE(problems.empty()) << problems.lines();
  ASSERT_EQ(prompts.size(), 4u);
  const std::string end = "<|im_start|>user\nSay it.<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_NE(prompts[0].text.find("<|im_start|>user\nSay\n\nit.<|im_end|>\n<|im_start|>assistant\n"), std::string::npos);
  EXPECT_TRUE(prompts[1].text.ends_with(end)) << prompts[1].text;
  EXPECT_EQ(prompts[2].text, prompts[1].text);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_FALSE(prompts[i].answered) << i;
  EXPECT_TRUE(prompts[3].answered) << "the model writes another answer after it";
}

TEST_F(Prompts, ATextFileHasOneALine) {
  Problems problems;
  const auto prompts = read_prompts(write("a.txt", "\xEF\xBB\xBFone\r\n\n  two {\nthree"), encoder(), problems);
  ASSERT_TRUE(problems.empty()) << problems.lines();
  ASSERT_EQ(prompts.size(), 3u);
  EXPECT_EQ(prompts[0].text, "one");
  EXPECT_EQ(prompts[1].text, "  two {");
  EXPECT_EQ(prompts[1].line, 3);
}

// Standard input is read in blocks, of the size of a pipe's buffer.
TEST_F(Prompts, AllLinesOfStandardInputAreRead) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += cat("{\"input_ids\": [", i % 4000, "]}\n");
  const int before = ::dup(STDIN_FILENO), file = ::open(write("lines", text).c_str(), O_RDONLY);
  ASSERT_GE(file, 0);
  ::dup2(file, STDIN_FILENO);
  Problems problems;
  const auto prompts = read_prompts("-", encoder(), problems);
  ::dup2(before, STDIN_FILENO);
  ::close(before);
  ::close(file);
  ASSERT_TRUE(problems.empty()) << problems.lines();
  ASSERT_EQ(prompts.size(), 20000u);
  for (int i = 0; i < 20000; ++i)
    EXPECT_EQ(prompts[static_cast<std::size_t>(i)].ids, std::vector<std::int32_t>{i % 4000});
}

TEST_F(Prompts, EveryBadLineIsNamedAtOnce) {
  const std::string path = write("a.jsonl",
                                 "{\"prompt\": 5}\n"
                                 "{\"prompt\": \"fine\"}\n"
                                 "{\"text\": \"no\"}\n"
                                 "{broken\n"
                                 "{\"prompt\": \"a\", \"input_ids\": [1]}\n"
                                 "{\"input_ids\": [1, 99999999]}\n"
                                 "{\"messages\": [{\"content\": \"a\"}]}\n"
                                 "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n");
  Problems problems;
  EXPECT_EQ(read_prompts(path, encoder(false), problems).size(), 1u);
  const std::string lines = problems.lines();
  for (const std::string& part :
       {path + ": wrong type (expected a text or a list of messages, got number) at line 1, prompt",
        path + ": line needs exactly one of these keys (expected prompt, messages, conversations, instruction, "
               "question or input_ids, got none) at line 3",
        path + ": broken JSON",
        path + ": line needs exactly one of these keys (expected prompt, messages, conversations, instruction, "
               "question or input_ids, got prompt and "
               "input_ids) at line 5",
        path + ": id outside the vocabulary", std::string(" at line 6"),
        path + ": message without a role (expected user, assistant, system or another role, got none) at line 7",
        path + ": messages need a chat template, and the model has none at line 8; try --chat-template chatml"}) {
    EXPECT_NE(lines.find(part), std::string::npos) << part << "\nin\n" << lines;
  }
  EXPECT_EQ(problems.size(), 7u) << lines;
}

TEST_F(Prompts, WhatIsNoFileOfPromptsIsRejected) {
  const auto message = [&](const std::string& path) {
    Problems problems;
    EXPECT_TRUE(read_prompts(path, encoder(), problems).empty());
    return problems.lines();
  };
  EXPECT_NE(message(write("a.doc", "a,b\n")).find("expected .jsonl, .json, .csv, .tsv, .parquet or .txt"),
            std::string::npos);
  EXPECT_NE(message(write("b.txt", "\n \n")).find("no prompts"), std::string::npos);
  EXPECT_NE(message(folder_.path("none.txt")).find("none.txt"), std::string::npos);
  EXPECT_NE(message(write("c.txt", "a\xFF\n")).find("not UTF-8 at line 1"), std::string::npos);
  // Same limits as for training data: zero bytes and duplicate keys are rejected, and nesting depth is limited.
  const std::string deep(300000, '[');
  EXPECT_NE(message(write("d.jsonl", "{\"prompt\": " + deep + std::string(300000, ']') + "}\n"))
                .find("JSON nested too deeply (expected at most 200 levels) at line 1, byte 210"),
            std::string::npos);
  EXPECT_NE(message(write("e.jsonl", std::string("{\"prompt\": \"a\"}\0{\"prompt\": \"b\"}\n", 32)))
                .find("broken JSON: a zero byte at line 1, byte 15"),
            std::string::npos);
  EXPECT_NE(message(write("f.jsonl", "\n{\"prompt\": \"a\", \"prompt\": \"b\"}\n"))
                .find("key given twice (expected once, got prompt) at line 2"),
            std::string::npos);
  Problems problems;
  const PromptEncoder without("DIR", nullptr, nullptr, {}, std::nullopt, 100);
  EXPECT_TRUE(read_prompts(write("d.jsonl", "{\"prompt\": \"a\"}\n{\"input_ids\": [3]}\n"), without, problems).size() ==
              1);
  EXPECT_NE(
      problems.lines().find("no tokenizer.json in the model's folder at line 1; try input_ids in place of a text"),
      std::string::npos)
      << problems.lines();
}

}  // namespace prompts_test
}  // namespace hawser::generate
