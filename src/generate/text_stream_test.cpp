#include "generate/text_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

namespace hawser::generate {
namespace {

namespace fs = std::filesystem;

struct Streamed {
  std::vector<std::string> pieces;
  std::string text;
  bool stopped = false;
};

Streamed stream(const text::Tokenizer& tokenizer, const std::vector<std::int32_t>& before,
                const std::vector<std::int32_t>& ids, const std::vector<std::string>& stops = {}) {
  TextStream text(tokenizer, before, stops);
  Streamed out;
  for (const std::int32_t id : ids) {
    out.pieces.push_back(text.push(id));
    if (text.stopped()) break;
  }
  out.pieces.push_back(text.finish());
  for (const std::string& piece : out.pieces) out.text += piece;
  EXPECT_EQ(out.text, text.text());
  out.stopped = text.stopped();
  return out;
}

class TextStreams : public ::testing::Test {
 protected:
  // Tokenizers of several kinds: bytes, byte fallback, leading spaces, word pieces.
  static std::vector<std::unique_ptr<text::Tokenizer>> tokenizers() {
    std::vector<std::unique_ptr<text::Tokenizer>> out;
    const fs::path golden = fs::path(HAWSER_SOURCE_DIR) / "tests/golden/tokenizers";
    out.push_back(text::load_tokenizer((fs::path(HAWSER_SOURCE_DIR) / "recipes/quickstart-tokenizer").string()));
    for (const char* name : {"llama2-style", "falcon-style"})
      out.push_back(text::load_tokenizer((golden / name).string()));
    return out;
  }
  static std::vector<std::int32_t> encoded(const text::Tokenizer& tokenizer, const std::string& text) {
    std::vector<std::int32_t> ids;
    tokenizer.encode(text, ids, false);
    return ids;
  }
};

TEST_F(TextStreams, PiecesAreTheWholeTextInWholeCharacters) {
  const std::string text =
      "It was the best of times, na\xC3\xAFve \xE2\x82\xAC 5 \xF0\x9F\x98\x80\xF0\x9F\x98\x80!\n  two";
  for (const auto& tokenizer : tokenizers()) {
    const std::vector<std::int32_t> ids = encoded(*tokenizer, text);
    for (std::size_t cut = 1; cut < ids.size(); ++cut) {
      const std::vector<std::int32_t> before(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(cut)),
          behind(ids.begin() + static_cast<std::ptrdiff_t>(cut), ids.end());
      const Streamed got = stream(*tokenizer, before, behind);
      const std::size_t full = whole_characters(*tokenizer, before);
      const std::string shown = tokenizer->decode(std::span(before).first(full), true);
      EXPECT_EQ(shown + got.text, tokenizer->decode(ids, true)) << cut;
      for (const std::string& piece : got.pieces) EXPECT_EQ(piece.find("\xEF\xBF\xBD"), std::string::npos) << cut;
    }
  }
}

TEST_F(TextStreams, BytesThatAreNoCharacterAreShownInTheEnd) {
  const auto tokenizer = std::move(tokenizers()[0]);
  const std::vector<std::int32_t> emoji = encoded(*tokenizer, "\xF0\x9F\x98\x80");
  ASSERT_GT(emoji.size(), 1u) << "the tokenizer has a token for it";
  std::vector<std::int32_t> ids = encoded(*tokenizer, "so ");
  ids.push_back(emoji[0]);
  EXPECT_EQ(stream(*tokenizer, {}, ids).text, tokenizer->decode(ids, true));
  std::vector<std::int32_t> many(40, emoji[0]);
  const Streamed got = stream(*tokenizer, {}, many);
  EXPECT_TRUE(std::any_of(got.pieces.begin(), got.pieces.end() - 1, [](const auto& piece) { return !piece.empty(); }))
      << "held back for ever";
}

TEST_F(TextStreams, StopTextsEndItAndAreNotPartOfIt) {
  for (const auto& tokenizer : tokenizers()) {
    const std::vector<std::int32_t> ids = encoded(*tokenizer, "one two three four five");
    const std::string all = tokenizer->decode(ids, true);
    const auto until = [&](const std::string& stop) { return all.substr(0, all.find(stop)); };
    const std::vector<std::int32_t> none;
    EXPECT_EQ(stream(*tokenizer, none, ids, {"three"}).text, until("three"));
    EXPECT_TRUE(stream(*tokenizer, none, ids, {"three"}).stopped);
    EXPECT_EQ(stream(*tokenizer, none, ids, {"five", "two thr"}).text, until("two thr"));
    EXPECT_EQ(stream(*tokenizer, none, ids, {"ee f", "ree"}).text, until("ree")) << "the first in the text";
    const Streamed unmet = stream(*tokenizer, none, ids, {"five six", "\n"});
    EXPECT_EQ(unmet.text, all) << "a possible start of a stop text is returned at the end";
    EXPECT_FALSE(unmet.stopped);
    // No part of a possible stop text is shown.
    std::string shown;
    for (const std::string& piece : stream(*tokenizer, none, ids, {"four five!"}).pieces) {
      shown += piece;
      EXPECT_TRUE(shown == all || shown.find('f') == std::string::npos) << shown;
    }
  }
}

}  // namespace
}  // namespace hawser::generate
