#include "prepare/line_names.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "prepare/jsonl.h"
#include "prepare/open_lines.h"
#include "prepare/prepare.h"

namespace hawser::prepare {
namespace line_names_test {

const LineNames kNames{
    .columns = {{"messages", {"dialogue", "talk"}}, {"role", {"speaker"}}, {"content", {"said"}}, {"text", {"body"}}},
    .roles = {{"assistant", {"agent", "Support"}}, {"user", {"customer"}}}};

std::string read(const std::string& text) {
  Problems problems;
  const auto line = parse_line(text, {.file = "f", .names = &kNames}, problems);
  if (!line) return problems.lines();
  if (line->text) return *line->text;
  std::string out;
  for (const text::chat::Value& message : line->chat->messages.list()) {
    out += cat(message.dict().find("role")->text().bytes, ": ", message.dict().find("content")->text().bytes, "; ");
  }
  return out;
}

TEST(LineNames, GiveKeysAndRolesTheirNames) {
  EXPECT_EQ(read(R"({"dialogue": [{"speaker": "customer", "said": "a"}, {"speaker": "Support", "said": "b"}]})"),
            "user: a; assistant: b; ");
  EXPECT_EQ(read(R"({"talk": [{"speaker": "agent", "said": "b"}], "dialogue": null})"), "assistant: b; ");
  EXPECT_EQ(read(R"({"messages": [{"role": "gpt", "content": "b"}]})"), "assistant: b; ") << "other files keep theirs";
  EXPECT_EQ(read(R"({"body": "x"})"), "x");
  EXPECT_EQ(read(R"({"body": "x", "text": "old"})"), "x");
  EXPECT_EQ(read(R"({"dialogue": [{"speaker": "agent"}]})"),
            "f: message without content (expected text, got none) at line 1, messages[0].content");
}

TEST(LineNames, ChangeTheFingerprint) {
  EXPECT_EQ(LineNames().fingerprint(), 0u);
  const LineNames one{.columns = {{"text", {"body"}}}}, other{.roles = {{"text", {"body"}}}};
  EXPECT_NE(one.fingerprint(), 0u);
  EXPECT_NE(one.fingerprint(), other.fingerprint());
}

TEST(LineNames, ColumnsOfTables) {
  const TemporaryFolder folder;
  const std::string table = folder.write("a.csv", "id,body\n1,hello\n");
  EXPECT_THROW(read_all_bytes(*open_lines(table).bytes, table), UserError);
  EXPECT_EQ(read_all_bytes(*open_lines(table, true, &kNames).bytes, table), "\n{\"id\":\"1\",\"body\":\"hello\"}\n")
      << "the line of the header is blank";
}

// A name with a typing error changes nothing, so it is named.
TEST(LineNames, ThatNoFileHasAreNamed) {
  const TemporaryFolder folder;
  folder.write("a.jsonl", R"({"dialogue": [{"speaker": "agent", "said": "x"}, {"speaker": "user", "said": "y"}]})");
  folder.write("b.jsonl", R"({"body": "x"})");
  const PrepareOptions options{
      .train = {"a.jsonl", "b.jsonl"},
      .folder = folder.path(""),
      .tokenizer = testing::kSourceFolder + std::string("/recipes/quickstart-tokenizer/tokenizer.json"),
      .output = folder.path("out"),
      .chat_template = "chatml",
      .names = kNames};
  std::vector<std::string> notes = notes_of(prepare(options), options);
  std::erase_if(notes, [](const std::string& note) { return note.find("has the name of") == note.npos; });
  EXPECT_EQ(notes, (std::vector<std::string>{"no line of any file has the name of data.columns: talk",
                                             "no line of any file has the name of data.roles: Support",
                                             "no line of any file has the name of data.roles: customer"}));
}

TEST(LineNames, ThatNoLineHasAreRejected) {
  Problems problems;
  check_names({.columns = {{"messages", {"x"}}, {"mesages", {"y"}}}}, problems);
  EXPECT_EQ(problems.lines(),
            "no key of a line or a message (expected Hawser's name before the file's: messages, role, content, text, "
            "prompt, ..., got mesages) at data.columns");
}

}  // namespace line_names_test
}  // namespace hawser::prepare
