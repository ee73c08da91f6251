// Seven conversations by every chat template of the PyPI package `trl`, which scripts/fetch-inputs downloads: texts and
// answers of tools/golden/make_trl_chats.py.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/philox.h"
#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "prepare/answers.h"
#include "prepare/testing/bytes_tokenizer.h"
#include "prepare/token_file.h"

namespace hawser::prepare {
namespace trl_chats_test {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const fs::path kRoot = testing::kSourceFolder;

// The bytes that are learned, as ranges; adjacent ones are joined.
Json learned(const Line& line, const text::Tokenizer& tokenizer) {
  Json ranges = Json::array();
  std::size_t at = 0;
  for (std::size_t i = 0; i < line.ids.size(); ++i) {
    const std::size_t end = at + tokenizer.surface(line.ids[i]).size();
    if (line.labels[i] != kIgnoredLabel) {
      const bool joins = !ranges.empty() && ranges.back()[1] == at;
      if (joins) ranges.back()[1] = end;
      if (!joins) ranges.push_back({at, end});
    }
    at = end;
  }
  return ranges;
}

// Ranges that touch are joined, and empty ones left out, as tokens show them.
Json joined_ranges(const Json& ranges) {
  Json out = Json::array();
  for (const Json& one : ranges) {
    if (one[0] == one[1]) continue;
    const bool joins = !out.empty() && out.back()[1] == one[0];
    if (joins) out.back()[1] = one[1];
    if (!joins) out.push_back(one);
  }
  return out;
}

std::string contents_of(const text::chat::Rendered& rendered) {
  std::string out = "contents:";
  for (const auto& one : rendered.contents) out += one ? cat(" [", one->begin, ",", one->end, "]") : " none";
  return out;
}

std::string hash_of(const std::string& text) {
  char hash[17];
  std::snprintf(hash, sizeof hash, "%016llx", static_cast<unsigned long long>(fnv1a(text)));
  return hash;
}

TEST(TrlChats, TextsAndAnswersAreThoseOfTransformers) {
  const Json golden = Json::parse(read_file(kRoot / "tests/golden/chat/trl.json"));
  const fs::path templates = kRoot / "inputs/chat_templates/trl";
  ASSERT_TRUE(fs::exists(templates)) << "no published templates; try scripts/fetch-inputs --what chat";
  const TemporaryFolder folder;
  int texts = 0, marked = 0, by_rule = 0, rejected = 0;
  for (const auto& [name, of] : golden["templates"].items()) {
    const auto tokenizer = text::load_tokenizer(folder.write(name + ".json", tokenizer_of_bytes(of["special"])));
    const auto chat_template = std::make_shared<const text::chat::ChatTemplate>(
        read_file(templates / (name + ".jinja")), golden["tokens"].get<std::map<std::string, std::string>>(), name);
    const AnswerEncoder encoder(*tokenizer, chat_template, {});
    for (const auto& [kind, conversation] : golden["conversations"].items()) {
      const std::string where = cat(name, ", ", kind);
      const Json& expected = of["expected"][kind];
      Problems problems;
      auto line = parse_line(conversation.dump(), {.file = where}, problems);
      ASSERT_TRUE(line) << problems.lines();
      if (!expected.is_null()) {
        const std::string text = chat_template->used_for(*line->chat).render(*line->chat).text;
        EXPECT_EQ(hash_of(text), expected["fnv1a"].get<std::string>()) << where << "\n" << text;
        EXPECT_EQ(text.size(), expected["bytes"]) << where;
        ++texts;
      }
      const bool encoded = encoder.encode(*line, {.file = where}, problems);
      if (expected.is_null() || expected["dropped"] || expected["answers"].is_null()) {
        EXPECT_FALSE(encoded) << where;
        ++rejected;
        continue;
      }
      if (!encoded) {
        // A conversation whose answers are all empty has nothing to learn.
        EXPECT_TRUE(joined_ranges(expected["answers"]).empty()) << problems.lines();
        continue;
      }
      std::string text;
      for (const std::int32_t id : line->ids) text += tokenizer->surface(id);
      EXPECT_EQ(hash_of(text), expected["fnv1a"].get<std::string>()) << where << ": the tokens";
      EXPECT_EQ(learned(*line, *tokenizer), joined_ranges(expected["answers"]))
          << where << "\n"
          << text << "\n"
          << contents_of(chat_template->used_for(*line->chat).render(*line->chat));
      (of["generation"] ? marked : by_rule) += 1;
    }
  }
  EXPECT_EQ(texts, 424);
  EXPECT_EQ(marked, 151);
  EXPECT_EQ(by_rule, 158);
  RecordProperty("texts", texts);
  RecordProperty("rejected", rejected);
}

}  // namespace trl_chats_test
}  // namespace hawser::prepare
