#include "generate/text_stream.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "base/testing/test_paths.h"
#include "base/utf8.h"

namespace hawser::generate {
namespace text_stream_test {

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
    const fs::path golden = fs::path(testing::kSourceFolder) / "tests/golden/tokenizers";
    out.push_back(text::load_tokenizer((fs::path(testing::kSourceFolder) / "recipes/quickstart-tokenizer").string()));
    for (const char* name : {"llama2-style", "falcon-style", "mistral-style", "sp-bpe-bytes", "sp-unigram-bytes"})
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

// Texts whose characters are mostly several byte tokens: any cut gives the same text, and any end valid UTF-8.
TEST_F(TextStreams, RunsOfByteTokensAreReadAsCharacters) {
  const std::vector<std::string> characters = {
      "\xE1\x9E\x80", "\xE1\x80\x80", "\xF0\x9F\x91\x8D", "\xC7\xBF", "\xF0\x90\x8D\x88", "\xE2\xB7\x80", "a", " ",
      "\n",           "the "};
  std::mt19937 random(5);
  for (const auto& tokenizer : tokenizers()) {
    for (int round = 0; round < 30; ++round) {
      std::string text = round == 0 ? "" : "so ";
      const std::size_t kinds = round % 3 == 0 ? 1 : characters.size();
      const std::size_t shift = random() % 6;
      for (int i = 0; i < 24; ++i) text += characters[(random() % kinds + (kinds == 1 ? shift : 0))];
      const std::vector<std::int32_t> ids = encoded(*tokenizer, text);
      const std::string all = tokenizer->decode(ids, true);
      ASSERT_EQ(all.find("\xEF\xBF\xBD"), std::string::npos) << text;
      for (std::size_t cut = 0; cut <= ids.size(); ++cut) {
        const auto at = ids.begin() + static_cast<std::ptrdiff_t>(cut);
        const std::vector<std::int32_t> before(ids.begin(), at), behind(at, ids.end());
        const std::size_t full = whole_characters(*tokenizer, before);
        ASSERT_LT(before.size() - full, 4u);
        const std::string shown = tokenizer->decode(std::span(before).first(full), true);
        ASSERT_TRUE(all.starts_with(shown)) << text << " at " << cut;
        ASSERT_EQ(shown + stream(*tokenizer, before, behind).text, all) << text << " at " << cut;
        // Ends inside a character: the complete ones, then U+FFFD.
        std::string ended = stream(*tokenizer, {}, before).text;
        EXPECT_EQ(find_invalid_utf8(ended), std::string::npos) << text << " up to " << cut;
        int invalid = 0;
        for (; ended.ends_with("\xEF\xBF\xBD"); ended.resize(ended.size() - 3)) ++invalid;
        EXPECT_LT(invalid, 4) << text << " up to " << cut;
        EXPECT_EQ(ended, shown) << text << " up to " << cut;
      }
    }
  }
}

// A U+FFFD of the prompt is a character as any other, and invalid bytes change no other text.
TEST_F(TextStreams, ReplacementCharactersAndInvalidBytes) {
  for (const auto& tokenizer : tokenizers()) {
    std::vector<std::int32_t> ids = encoded(*tokenizer, "so \xEF\xBF\xBD\xEF\xBF\xBD");
    EXPECT_EQ(whole_characters(*tokenizer, ids), ids.size());
    EXPECT_EQ(stream(*tokenizer, ids, encoded(*tokenizer, "word")).text.find("\xEF\xBF\xBD"), std::string::npos);
    const auto first = tokenizer->id_of("<0xF0>");
    if (!first) continue;
    ids = encoded(*tokenizer, "so \xF0\x9F\x91\x8D");
    ids.push_back(*first);
    ids.push_back(*first);
    for (const std::int32_t id : encoded(*tokenizer, "\xF0\x9F\x91\x8D")) {
      if (tokenizer->byte_of(id)) ids.push_back(id);
    }
    EXPECT_EQ(stream(*tokenizer, {}, ids).text, "so \xF0\x9F\x91\x8D\xEF\xBF\xBD\xEF\xBF\xBD\xF0\x9F\x91\x8D");
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
    const std::vector<std::int32_t> the = encoded(*tokenizer, "but the");  // its last token has both
    const std::string start = tokenizer->decode(the, true);
    for (const auto& stops : {std::vector<std::string>{"h", "e"}, {"e", "h"}}) {
      EXPECT_EQ(stream(*tokenizer, none, the, stops).text, start.substr(0, start.find('h'))) << "the first in the text";
    }
    const Streamed unmet = stream(*tokenizer, none, ids, {"five six", "\n"});
    EXPECT_EQ(unmet.text, all) << "a possible start of a stop text is returned at the end";
    EXPECT_FALSE(unmet.stopped);
    // What the first stop text may begin with is held, also if the last one may begin later.
    EXPECT_EQ(stream(*tokenizer, none, ids, {"two three f", "three!"}).text, until("two three f"));
    // No part of a possible stop text is shown.
    std::string shown;
    for (const std::string& piece : stream(*tokenizer, none, ids, {"four five!"}).pieces) {
      shown += piece;
      EXPECT_TRUE(shown == all || shown.find('f') == std::string::npos) << shown;
    }
  }
}

}  // namespace text_stream_test
}  // namespace hawser::generate
