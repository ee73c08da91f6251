#include "data/jsonl.h"

#include <gtest/gtest.h>

#include "data/testing/scratch_folder.h"

namespace hawser::data {
namespace {

using Ids = std::vector<std::int32_t>;

// What is wrong with a line, without the name of the file.
std::string refusal(std::string_view text, std::int64_t vocab_size = 100) {
  Problems problems;
  const LinePlace place{.file = "f", .number = 12, .byte = 1000, .vocab_size = vocab_size};
  const auto line = parse_line(text, place, problems);
  EXPECT_EQ(line.has_value(), problems.empty());
  return problems.empty() ? "accepted" : problems.lines();
}

TEST(Jsonl, ReadsTextAndIds) {
  Problems problems;
  const auto text = parse_line(R"({"text": "caf\u00e9", "source": "x"})", {}, problems);
  EXPECT_EQ(text->text, "café");
  const auto ids =
      parse_line(R"({"input_ids": [1,2,3], "labels": [-100,2,3], "document_lengths": [1,2]})", {}, problems);
  EXPECT_EQ(ids->ids, (Ids{1, 2, 3}));
  EXPECT_EQ(ids->labels, (Ids{-100, 2, 3}));
  EXPECT_EQ(ids->document_lengths, (Ids{1, 2}));
  const auto plain = parse_line(R"({"input_ids": [1], "labels": null})", {}, problems);
  EXPECT_TRUE(plain->labels.empty());
  EXPECT_TRUE(problems.empty());
}

TEST(Jsonl, SaysWhatIsWrongAndWhere) {
  EXPECT_EQ(refusal("{\"text\": ").substr(0, 15), "f: broken JSON:");
  EXPECT_NE(refusal("{\"text\" 5}").find(" at line 12, byte 1008"), std::string::npos);
  EXPECT_NE(refusal("{\"text\": \"\xFF\"}").find("broken JSON"), std::string::npos);
  EXPECT_EQ(refusal("[1]"), "f: line is not an object (expected {...}, got array) at line 12");
  EXPECT_EQ(refusal("{}"), "f: line needs one of two keys (expected text or input_ids, got neither) at line 12");
  EXPECT_EQ(refusal(R"({"text":"a","input_ids":[1]})"),
            "f: line needs one of two keys (expected text or input_ids, got both) at line 12");
  EXPECT_EQ(refusal(R"({"text":5})"), "f: wrong type (expected a string, got number) at line 12, text");
  EXPECT_EQ(refusal(R"({"messages":[]})"),
            "f: chat lines are not supported yet at line 12, messages; try text, or input_ids with labels");
  EXPECT_EQ(refusal(R"({"prompt":"a","completion":"b"})"),
            "f: chat lines are not supported yet at line 12, prompt; try text, or input_ids with labels");
  EXPECT_EQ(refusal(R"({"input_ids":[]})"), "f: no ids (expected one or more, got none) at line 12, input_ids");
  EXPECT_EQ(refusal(R"({"input_ids":"a"})"),
            "f: wrong type (expected a list of whole numbers, got string) at line 12, input_ids");
  for (const char* id : {"100", "-1", "1.5", "\"a\"", "99999999999999999999", "18446744073709551615", "-9e18"}) {
    EXPECT_EQ(refusal(std::string(R"({"input_ids":[1,)") + id + "]}").substr(0, 43),
              "f: id outside the vocabulary (expected 0 to")
        << id;
  }
  EXPECT_EQ(refusal(R"({"input_ids":[100]})"),
            "f: id outside the vocabulary (expected 0 to 99, got 100) at line 12, input_ids[0]");
  EXPECT_EQ(refusal(R"({"input_ids":[100]})", 0), "accepted");
  EXPECT_EQ(refusal(R"({"input_ids":[1,2],"labels":[1]})"),
            "f: labels do not match input_ids (expected 2, got 1) at line 12, labels");
  EXPECT_EQ(refusal(R"({"input_ids":[1,2],"labels":[1,-99]})"),
            "f: label outside the vocabulary (expected -100, or 0 to 99, got -99) at line 12, labels[1]");
  EXPECT_EQ(refusal(R"({"input_ids":[1,2],"document_lengths":[1,2]})"),
            "f: document_lengths do not add up (expected 2, got 3) at line 12, document_lengths");
  EXPECT_EQ(refusal(R"({"input_ids":[1,2],"document_lengths":[2,0]})").substr(0, 22), "f: bad document length");
  // Both mistakes of a line.
  EXPECT_EQ(refusal(R"({"input_ids":[700],"document_lengths":[0]})").find('\n') != std::string::npos, true);
}

TEST(Jsonl, CollectsAllProblemsOfAFile) {
  const ScratchFolder folder;
  Problems problems;
  const auto lines = read_jsonl(
      folder.write("a.jsonl", "{\"text\":\"a\"}\r\n\n{bad\n{\"input_ids\":[5000]}\n{\"text\":\"b\"}"), 100, problems);
  EXPECT_EQ(lines.size(), 2u);
  ASSERT_EQ(problems.size(), 2u);
  EXPECT_EQ(problems.all()[0].at, "line 3, byte 16");
  EXPECT_EQ(problems.all()[1].at, "line 4, input_ids[0]");
  for (const char* empty : {"", "\n\n  \n"}) {
    Problems none;
    EXPECT_TRUE(read_jsonl(folder.write("b.jsonl", empty), 100, none).empty());
    EXPECT_NE(none.lines().find("empty file"), std::string::npos);
  }
  EXPECT_THROW(read_jsonl(folder.path("none.jsonl"), 100, problems), UserError);
}

}  // namespace
}  // namespace hawser::data
