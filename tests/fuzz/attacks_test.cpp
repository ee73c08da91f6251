// Files that are made to harm who reads them: counts that lie, nesting without end, texts that grow. Each ends in a
// UserError of one line that names the file, in a moment and without the memory that the file speaks of.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <cstring>
#include <functional>

#include "base/json_depth.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/testing.h"
#include "data/chat/chat_template.h"
#include "data/token_file.h"
#include "data/tokenizers/tokenizer.h"
#include "report/metrics.h"
#include "train/saver.h"

namespace hawser {
namespace {

using checkpoint::testing::write_file;

constexpr double kSeconds = 60;  // a moment, on a busy machine under the sanitizers

std::string repeated(const std::string& text, int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += text;
  return out;
}

std::string brackets(int levels) {
  return repeated("[", levels) + repeated("]", levels);
}

// What the reader says.
std::string refusal(const std::function<void()>& read) {
  const auto start = std::chrono::steady_clock::now();
  std::string said = "accepted";
  try {
    read();
  } catch (const UserError& error) {
    said = error.what();
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), kSeconds) << said;
  EXPECT_EQ(said.find('\n'), std::string::npos) << said;
  EXPECT_LT(said.size(), 1000u) << said.substr(0, 1000);
  return said;
}

class Attack : public ::testing::Test {
 protected:
  std::string tokenizer(const std::string& text) {
    return refusal([&] {
      write_file(folder_ / "tokenizer.json", text);
      data::load_tokenizer(folder_ / "tokenizer.json");
    });
  }
  const TemporaryFolder folder_{memory_folder()};
};

TEST_F(Attack, TokenizersThatNestWithoutEnd) {
  const std::string name =
      folder_.path("tokenizer.json") + ": JSON nested too deeply (expected at most 64 levels) at byte ";
  EXPECT_EQ(tokenizer("{\"model\":" + brackets(300000) + "}"), name + "72");
  EXPECT_EQ(tokenizer(repeated("{\"a\":", 300000)), name + "320");
  for (const auto& [kind, list] : {std::pair("normalizer", "normalizers"), std::pair("pre_tokenizer", "pretokenizers"),
                                   std::pair("decoder", "decoders"), std::pair("post_processor", "processors")}) {
    const std::string one = std::string("{\"type\":\"Sequence\",\"") + list + "\":[";
    const std::string text = std::string("{\"") + kind + "\":" + repeated(one, 50000) + repeated("]}", 50000) + "}";
    EXPECT_EQ(tokenizer(text).substr(0, name.size()), name) << kind;
  }
  EXPECT_NE(
      tokenizer("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":" + std::string(100000, '9') + "},\"merges\":[]}}"),
      "accepted");
}

TEST_F(Attack, TokenizersWhoseTextsGrow) {
  const std::string replace =
      R"({"type":"Replace","pattern":{"String":"h"},"content":")" + std::string(1000, 'h') + "\"}";
  std::string steps = replace;
  for (int i = 0; i < 5; ++i) steps += "," + replace;
  write_file(folder_ / "tokenizer.json", R"({"normalizer":{"type":"Sequence","normalizers":[)" + steps +
                                             R"(]},"model":{"type":"BPE","vocab":{"h":0},"merges":[]}})");
  const auto loaded = data::load_tokenizer(folder_ / "tokenizer.json");
  std::vector<std::int32_t> ids;
  EXPECT_EQ(refusal([&] { loaded->encode("hh", ids, false); }).substr(0, 57),
            "the tokenizer's normalizer makes more than 512 MiB of a t");
}

TEST_F(Attack, PatternsThatDoNotCompileAreNotShownWhole) {
  const std::string pattern = std::string(50000, '(') + "a" + std::string(50000, ')');
  const std::string said =
      tokenizer(R"({"pre_tokenizer":{"type":"Split","pattern":{"Regex":")" + pattern +
                R"("},"behavior":"Isolated","invert":false},"model":{"type":"BPE","vocab":{"h":0},"merges":[]}})");
  EXPECT_NE(said.find("regular expression does not compile: "), std::string::npos) << said;
  EXPECT_NE(said.find(" after ...((("), std::string::npos) << said;
}

TEST_F(Attack, TokenizerConfigsThatNestWithoutEnd) {
  write_file(folder_ / "tokenizer.json", "{}");
  write_file(folder_ / "tokenizer_config.json", "{\"chat_template\":" + brackets(300000) + "}");
  Problems problems;
  data::chat::open_chat_template("", folder_ / "tokenizer.json", "", "data.chat_template", problems);
  EXPECT_EQ(problems.lines(),
            folder_.path("tokenizer_config.json") + ": JSON nested too deeply (expected at most 64 levels)");
}

// Index files whose counts and lengths are not what lies in them.
TEST_F(Attack, TokenIndexesThatLie) {
  const std::string magic("MMIDIDX\0\0", 9);
  const auto number = [](auto value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  };
  const auto index = [&](std::uint8_t type, std::uint64_t sequences, std::uint64_t bounds, const std::string& rest) {
    return magic + number(std::uint64_t{1}) + number(type) + number(sequences) + number(bounds) + rest;
  };
  const auto read = [&](const std::string& idx, const std::string& bin) {
    write_file(folder_ / "a.idx", idx);
    write_file(folder_ / "a.bin", bin);
    const std::string said = refusal([&] {
      const data::TokenFile file(folder_ / "a");
      file.check_ids(100);
    });
    return said.starts_with(folder_.path("a.")) ? said.substr(folder_.path("a.").size()) : said;
  };
  const std::uint64_t most = ~std::uint64_t{0};
  for (const std::uint8_t type : {std::uint8_t{4}, std::uint8_t{8}}) {
    const std::size_t width = type == 4 ? 4 : 2;
    for (const std::uint64_t sequences : {std::uint64_t{1} << 62, most, most / 12, std::uint64_t{1}}) {
      for (const std::uint64_t bounds : {std::uint64_t{1} << 61, most, most / 8 + 1, std::uint64_t{0}}) {
        EXPECT_TRUE(read(index(type, sequences, bounds, std::string(20, '\0')), "").starts_with("idx: ")) << sequences;
      }
    }
    // One sequence, one document.
    const auto one = [&](std::int32_t length, std::int64_t offset, std::int64_t first, std::int64_t end) {
      return index(type, 1, 2, number(length) + number(offset) + number(first) + number(end));
    };
    const std::string three(3 * width, '\0');
    EXPECT_EQ(read(one(3, 0, 0, 1), three), "accepted");
    EXPECT_TRUE(read(one(2147483647, 0, 0, 1), three).starts_with("bin: token file cut short"));
    EXPECT_TRUE(read(one(-1, 0, 0, 1), three).starts_with("idx: negative length"));
    EXPECT_TRUE(read(one(3, std::int64_t{1} << 62, 0, 1), three).starts_with("idx: gap between sequences"));
    EXPECT_TRUE(read(one(3, -8, 0, 1), three).starts_with("idx: sequences overlap"));
    EXPECT_TRUE(read(one(3, 0, 0, std::int64_t{1} << 62), three).starts_with("idx: document bounds"));
    EXPECT_TRUE(read(one(3, 0, -1, 1), three).starts_with("idx: document bounds"));
    EXPECT_TRUE(read(one(3, 0, 0, 1), three + "\1").starts_with("bin: token file longer"));
    EXPECT_TRUE(read(one(3, 0, 0, 1), "").starts_with("bin: "));
    EXPECT_TRUE(read(one(3, 0, 0, 1), std::string(3 * width, '\x7f')).starts_with("bin: id outside the vocabulary"));
    EXPECT_TRUE(read("", three).starts_with("idx: "));
    for (std::size_t cut = 0; cut < one(3, 0, 0, 1).size(); ++cut) {
      EXPECT_TRUE(read(one(3, 0, 0, 1).substr(0, cut), three).starts_with("idx: ")) << cut;
    }
  }
  EXPECT_TRUE(read(index(5, 0, 1, number(std::uint64_t{0})), "").starts_with("idx: token type not supported"));
}

TEST_F(Attack, LinesOfMetricsThatNestWithoutEnd) {
  EXPECT_FALSE(report::from_json(R"({"step":1,"loss":2,"more":)" + brackets(300000) + R"(,"then":1})"));
  EXPECT_FALSE(report::from_json(R"({"step":1,"findings":)" + brackets(300000)));
  EXPECT_TRUE(report::from_json(R"({"step":1,"loss":2,"more":[[[]]]})"));
}

TEST_F(Attack, StateOfARunThatNestsWithoutEnd) {
  EXPECT_EQ(refusal([] { train::run_state_of(R"({"step":1,"recipe":)" + brackets(300000) + R"(,"sequences":1})"); }),
            "the checkpoint was not written by `hawser fit` (got JSON nested too deeply)");
}

TEST(JsonDepth, CountsBracketsOutsideOfTexts) {
  EXPECT_EQ(deeper_than("[[{\"a\":1}]]", 3), std::nullopt);
  EXPECT_EQ(deeper_than("[[{\"a\":1}]]", 2), 2u);
  EXPECT_EQ(deeper_than("[],[],[],{}", 1), std::nullopt);
  EXPECT_EQ(deeper_than(R"(["[[[\"[[\\", [1]])", 2), std::nullopt);
  EXPECT_EQ(deeper_than(R"(["[[[\"[[\\", [1]])", 1), 14u);
  EXPECT_EQ(deeper_than("\"[[[[", 1), std::nullopt);
}

}  // namespace
}  // namespace hawser
