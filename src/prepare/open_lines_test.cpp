#include "prepare/open_lines.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/testing/temporary_folder.h"
#include "prepare/testing/archives.h"

namespace hawser::prepare {
namespace open_lines_test {

class OpenLines : public ::testing::Test {
 protected:
  // All lines, read `step` bytes at a time; the error message, without the folder, if there is one.
  std::string lines(const std::string& name, const std::string& contents, std::size_t step = 1 << 20) {
    folder_.write(name, contents);
    std::string out;
    try {
      const Lines opened = open_lines(folder_.path(name), training_);
      unit_ = opened.unit;
      std::string part(step, '\0');
      for (std::size_t got = step; got == step;) {
        got = opened.bytes->read(part);
        out.append(part, 0, got);
      }
    } catch (const UserError& error) {
      out = error.what();
      const std::string folder = folder_.path("");
      for (std::size_t at; (at = out.find(folder)) != out.npos;) out.erase(at, folder.size());
    }
    return out;
  }
  TemporaryFolder folder_;
  bool training_ = true;
  std::string unit_;
};

TEST_F(OpenLines, ReadsAnArrayItemByItemWithoutMovingAByte) {
  const std::string array =
      " \r\n[\n  {\"text\": \"a, [b] {c} \\\" \\\\\",\n   \"n\": [1,\n2]},{\"text\":\"}\"}\t,\r\n{}\n]\n\n";
  const std::string expected =
      "       {\"text\": \"a, [b] {c} \\\" \\\\\",    \"n\": [1, 2]}\n{\"text\":\"}\"}\t\n  {}    ";
  ASSERT_EQ(array.size(), expected.size());
  for (const std::size_t step : {1u, 2u, 3u, 7u, 1000u}) EXPECT_EQ(lines("a.json", array, step), expected) << step;
  EXPECT_EQ(unit_, "item");
  EXPECT_EQ(lines("a.jsonl", array), expected) << "an array, whatever the file is called";
  EXPECT_EQ(lines("a.json.gz", gzip(array)), expected);
  EXPECT_EQ(lines("a.json", "\xEF\xBB\xBF[{}]"), "    {} ");
  EXPECT_EQ(lines("a.json", "[ ]"), "   ");
}

TEST_F(OpenLines, ReadsLinesOfJsonAsTheyAre) {
  for (const char* text :
       {"{\"text\": \"a\"}\n\n{\"text\": \"[\"}\n", "{\"a\": {\"b\": [\"{\"]}} {}\n", "  \n", "x\n"}) {
    EXPECT_EQ(lines("a.json", text), text);
    EXPECT_EQ(unit_, "line");
    EXPECT_EQ(lines("a.jsonl", text), text);
  }
  EXPECT_EQ(lines("a.jsonl", "{\n\"text\": \"a\"}\n"), "{\n\"text\": \"a\"}\n");
}

TEST_F(OpenLines, RejectsBrokenArraysWithTheirPlace) {
  EXPECT_EQ(lines("a.json", "[{\"a\": 1}, {\"b\": "), "a.json: JSON array cut short at item 2, byte 17");
  EXPECT_EQ(lines("a.json", "["), "a.json: JSON array cut short at item 1, byte 1");
  EXPECT_EQ(lines("a.json", "[{},,{}]"), "a.json: broken JSON array: an item is missing at item 2, byte 4");
  EXPECT_EQ(lines("a.json", "[{},]"), "a.json: broken JSON array: an item is missing at item 2, byte 4");
  EXPECT_EQ(lines("a.json", "[{}}]"), "a.json: broken JSON array: unexpected } at item 1, byte 3");
  EXPECT_EQ(lines("a.json", "[{}] {}"), "a.json: broken JSON array: text after its end at item 1, byte 5");
  EXPECT_EQ(lines("a.json", "[{\"a\": \"b\nc\"}]"),
            "a.json: broken JSON array: a line break in a text at item 1, byte 9");
  EXPECT_EQ(lines("a.json", "{\n  \"data\": [{}]\n}\n"),
            "a.json: one JSON object over several lines (expected an array of objects, [{...}, ...], or one object a "
            "line); try python3 -c 'import json; [print(json.dumps(x)) for x in json.load(open(\"a.json\"))[\"KEY\"]]' "
            "> FILE.jsonl, for the list under a key");
}

TEST_F(OpenLines, ReadsATableAsRfc4180) {
  const std::string table =
      "\xEF\xBB\xBFid,\"text\"\r\n1,plain\r\n2,\"a, \"\"b\"\"\r\nc\"\r\n\r\n3,it's 5\" tall\n4,\n5,\"\t\\\x01\"";
  const std::string expected =
      "\n{\"id\":\"1\",\"text\":\"plain\"}\n{\"id\":\"2\",\"text\":\"a, \\\"b\\\"\\r\\nc\"}\n\n"
      "{\"id\":\"3\",\"text\":\"it's 5\\\" tall\"}\n{\"id\":\"4\",\"text\":\"\"}\n"
      "{\"id\":\"5\",\"text\":\"\\t\\\\\\u0001\"}\n";
  for (const std::size_t step : {1u, 2u, 3u, 7u, 1000u}) EXPECT_EQ(lines("a.csv", table, step), expected) << step;
  EXPECT_EQ(unit_, "row");
  EXPECT_EQ(lines("a.csv.zst", zstd(table)), expected);
  EXPECT_EQ(lines("a.tsv", "text\ta,b\r1, 2\t\"\t\"\r"), "\n{\"text\":\"1, 2\",\"a,b\":\"\\t\"}\n");
  EXPECT_EQ(lines("a.csv", "text\n\"\"\n\n x \n"), "\n{\"text\":\"\"}\n\n{\"text\":\" x \"}\n");
  EXPECT_EQ(lines("a.csv", "\n\ntext\na"), "\n\n\n{\"text\":\"a\"}\n");
  EXPECT_EQ(lines("a.csv", ""), "");
}

TEST_F(OpenLines, RejectsBrokenTablesWithTheirRow) {
  EXPECT_EQ(lines("a.csv", "text,id\na,1\nb\n"),
            "a.csv: row has another number of fields than the header (expected 2, got 1) at row 3; try quotes around "
            "fields with a separator or line break");
  EXPECT_EQ(
      lines("a.csv", "text\n\"a\"b\n"),
      "a.csv: text after a closing quote (expected a separator, a line break, or a quote written twice) at row 2");
  EXPECT_EQ(lines("a.csv", "text\n\"a\nb\n"), "a.csv: a quote without its end (expected a closing quote) at row 2");
  EXPECT_EQ(lines("a.csv", "text,text\n"), "a.csv: column named twice (expected once, got text) at row 1");
  EXPECT_EQ(lines("a.csv", "text\n\xE9t\xE9\n"),
            "a.csv: not UTF-8 at row 2; try iconv -f windows-1252 -t utf-8, or the encoding that it has");
}

TEST_F(OpenLines, ATableNeedsTheColumnsOfOneForm) {
  const std::string expected =
      " (expected the columns text; prompt, completion; instruction, output; or question, answer, got ";
  EXPECT_EQ(lines("a.csv", "id,Text\n1,a\n"), "a.csv: no column to train on" + expected +
                                                  "id, Text) at row 1; try columns with these names, or data.columns");
  EXPECT_EQ(lines("a.csv", "question;answer\n"), "a.csv: no column to train on" + expected +
                                                     "question;answer) at row 1; try commas between columns, or tabs "
                                                     "and the name .tsv");
  EXPECT_EQ(lines("a.tsv", "question,answer\n"), "a.tsv: no column to train on" + expected +
                                                     "question,answer) at row 1; try tabs between columns, or commas "
                                                     "and the name .csv");
  EXPECT_EQ(lines("a.csv", "question,output,answer\n"),
            "a.csv: columns of several forms" + expected +
                "question, output, answer) at row 1; try only the columns of "
                "one form");
  EXPECT_EQ(lines("a.csv", "prompt,id\n"), "a.csv: prompt without completion" + expected +
                                               "prompt, id) at row 1; try columns with these names, or data.columns");
  EXPECT_EQ(lines("a.csv", "messages\n"),
            "a.csv: a table cannot hold lists" + expected + "messages) at row 1; try .jsonl for messages and ids");
  for (const char* header : {"text", "prompt,completion", "instruction,input,output", "context,response,instruction",
                             "question,answer,id", "question,system_prompt,response"}) {
    EXPECT_EQ(lines("a.csv", std::string(header) + "\n"), "\n") << header;
  }
  training_ = false;
  EXPECT_EQ(lines("a.csv", "prompt,id\n"), "\n") << "prompts of generate";
}

TEST_F(OpenLines, SkipsToAnyPlace) {
  std::string array = "[", table = "text\n";
  for (int i = 0; i < 200; ++i) {
    array += (i == 0 ? "{\"text\": \"a\nb" : ",\n{\"text\": \"") + std::to_string(i * i) + "\"}";
    table += "\"a\n" + std::to_string(i * i) + ", b\"\n";
  }
  array.replace(array.find("a\nb"), 3, "a\\n");
  for (const auto& [name, contents] : {std::pair("a.json", array + "]"), std::pair("a.csv", table)}) {
    const std::string all = lines(name, contents);
    EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), name == std::string("a.csv") ? 201 : 199);
    for (std::size_t at = 0; at <= all.size(); at += 97) {
      const Lines opened = open_lines(folder_.path(name));
      opened.bytes->skip(static_cast<std::int64_t>(at));
      std::string rest(all.size(), '\0');
      rest.resize(opened.bytes->read(rest));
      EXPECT_TRUE(rest == all.substr(at)) << name << " " << at;
    }
    EXPECT_THROW(open_lines(folder_.path(name)).bytes->skip(static_cast<std::int64_t>(all.size()) + 1), UserError);
  }
}

}  // namespace open_lines_test
}  // namespace hawser::prepare
