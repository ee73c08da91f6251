#include "prepare/block_reader.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/philox.h"
#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "prepare/block_encoder.h"
#include "prepare/testing/archives.h"

namespace hawser::prepare {
namespace block_reader_test {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

Source source(const std::string& path, SourceKind kind) {
  return {path, kind, static_cast<std::int64_t>(fs::file_size(path)), 0};
}

std::vector<Block> blocks_of(const Source& from, const text::Tokenizer* tokenizer, std::int64_t block_bytes,
                             SourcePlace start = {}) {
  BlockReader reader(from, tokenizer, start, block_bytes);
  std::vector<Block> blocks;
  for (Block block; reader.next(block);) blocks.push_back(std::move(block));
  return blocks;
}

// Lines, blank lines, runs of spaces, tabs, long words, multi-byte characters, added tokens.
std::string prose(int count, std::uint64_t seed) {
  const RandomStream random(seed, "prose");
  const std::vector<std::string> pieces = {"word",       " and",
                                           " a",         "\n",
                                           "\n\n",       "  ",
                                           "\t",         " \n ",
                                           " naïve",     " 2024",
                                           " 日本語",    "、。",
                                           "'s",         " I'm",
                                           "...",        " ...\n",
                                           "\r\n",       "\u3000x",
                                           " \u00a0",    "🙂🙂",
                                           "<|im_end|>", " http://x.y/z?q=1",
                                           "-",          "\n-"};
  std::string text = "It";
  for (int i = 0; i < count; ++i) text += pieces[random.below(pieces.size(), i)];
  return text;
}

TEST(BlockReader, SplitsLinesAndResumesFromEveryPlace) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 500; ++i) text += std::string(static_cast<std::size_t>(i * 37 % 90), 'x') + "\n";
  text += "the last line has no end";
  folder.write("a.jsonl", text);
  folder.write("a.jsonl.gz", gzip(text));
  for (const char* name : {"a.jsonl", "a.jsonl.gz"}) {
    const Source from = source(folder.path(name), SourceKind::jsonl);
    const auto blocks = blocks_of(from, nullptr, 1000);
    EXPECT_GT(blocks.size(), 20u);
    std::string together;
    std::int64_t bytes = 0;
    for (const Block& block : blocks) {
      EXPECT_EQ(block.start.byte, static_cast<std::int64_t>(together.size()));
      EXPECT_EQ(block.start.line, 1 + std::count(together.begin(), together.end(), '\n'));
      together += block.text;
      bytes += block.file_bytes;
      // A reader that starts here returns the same next block.
      const auto rest = blocks_of(from, nullptr, 1000, block.end);
      EXPECT_TRUE(rest.empty() ? &block == &blocks.back() : rest[0].text == (&block + 1)->text);
    }
    EXPECT_TRUE(together == text);
    EXPECT_EQ(bytes, from.bytes);
  }
}

TEST(BlockReader, AByteOrderMarkIsNotPartOfAText) {
  const TemporaryFolder folder;
  folder.write("a.txt", "\xEF\xBB\xBFIt is\n\xEF\xBB\xBFhere");
  const auto blocks = blocks_of(source(folder.path("a.txt"), SourceKind::text), nullptr, 1000);
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_EQ(blocks[0].text, "It is\n\xEF\xBB\xBFhere");
  EXPECT_EQ(blocks[0].end.byte, 16) << "counts the bytes of the file";
}

TEST(BlockReader, PartsOfATextHaveTheIdsOfTheFullText) {
  const TemporaryFolder folder;
  for (const char* path : {"/recipes/quickstart-tokenizer", "/inputs/smollm2", "/inputs/tokenizers/llama3"}) {
    const std::string file = std::string(testing::kSourceFolder) + path + "/tokenizer.json";
    if (!fs::exists(file)) continue;
    const auto tokenizer = text::load_tokenizer(file);
    const BlockEncoder encoder({.tokenizer = tokenizer.get()});
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      const std::string text = prose(6000, seed);
      folder.write("a.txt", text);
      const Source from = source(folder.path("a.txt"), SourceKind::text);
      const auto encode = [&](const std::vector<Block>& blocks) {
        Ids ids;
        for (const Block& block : blocks) {
          const EncodedBlock encoded = encoder.encode(block);
          EXPECT_TRUE(encoded.problems.empty()) << encoded.problems.lines();
          for (const auto& document : encoded.documents)
            ids.insert(ids.end(), document.ids.begin(), document.ids.end());
        }
        return ids;
      };
      const auto whole = blocks_of(from, tokenizer.get(), 1 << 30), parts = blocks_of(from, tokenizer.get(), 300);
      ASSERT_EQ(whole.size(), 1u);
      EXPECT_GT(parts.size(), 30u);
      EXPECT_TRUE(parts.front().first && parts.back().last && !parts.front().last);
      const Ids expected = encode(whole);
      EXPECT_TRUE(encode(parts) == expected) << path << ", seed " << seed;
      // The same when resumed from a later part.
      const auto middle = parts.begin() + static_cast<std::ptrdiff_t>(parts.size() / 2);
      Ids ids = encode({parts.begin(), middle});
      const Ids rest = encode(blocks_of(from, tokenizer.get(), 300, middle->start));
      ids.insert(ids.end(), rest.begin(), rest.end());
      EXPECT_TRUE(ids == expected) << path << ", seed " << seed;
    }
  }
}

// A tokenizer for which no split preserves the ids: its id is the length of the text.
class Uncuttable final : public text::Tokenizer {
 public:
  void encode(std::string_view text, Ids& ids, bool) const override {
    ++calls;
    ids.push_back(static_cast<std::int32_t>(text.size()));
  }
  text::TextFrame frame() const override { return {}; }
  std::string decode_bytes(std::span<const std::int32_t>, bool) const override { return ""; }
  bool is_special(std::int32_t) const override { return false; }
  std::string surface(std::int32_t) const override { return ""; }
  std::int32_t vocab_size() const override { return 1 << 30; }
  std::optional<std::int32_t> id_of(std::string_view) const override { return std::nullopt; }
  std::optional<std::int32_t> bos() const override { return std::nullopt; }
  std::optional<std::int32_t> eos() const override { return std::nullopt; }
  std::uint64_t fingerprint() const override { return 1; }

  mutable std::int64_t calls = 0;
};

TEST(BlockReader, ReturnsOneBlockIfTheTokenizerRejectsEverySplit) {
  const TemporaryFolder folder;
  const std::string text = prose(60000, 9);
  folder.write("a.txt", text);
  const Uncuttable tokenizer;
  const auto blocks = blocks_of(source(folder.path("a.txt"), SourceKind::text), &tokenizer, 1000);
  ASSERT_EQ(blocks.size(), 1u);
  EXPECT_TRUE(blocks[0].text == text);
  EXPECT_LT(tokenizer.calls, 3000) << "stops testing candidates";
}

}  // namespace block_reader_test
}  // namespace hawser::prepare
