#include "prepare/token_places.h"

#include <gtest/gtest.h>

#include "base/cat.h"
#include "base/philox.h"
#include "base/testing/test_paths.h"

namespace hawser::prepare {
namespace token_places_test {

using Ids = std::vector<std::int32_t>;

// A tokenizer that counts its calls.
class Counting final : public text::Tokenizer {
 public:
  explicit Counting(const std::string& path)
      : of_(text::load_tokenizer(std::string(testing::kSourceFolder) + "/" + path)) {}

  void encode(std::string_view text, Ids& ids, bool add_special) const override {
    bytes += text.size();
    of_->encode(text, ids, add_special);
  }
  void encode_conversation(std::string_view text, Ids& ids) const override {
    bytes += text.size();
    of_->encode_conversation(text, ids);
  }
  text::TextFrame frame() const override { return of_->frame(); }
  std::string decode_bytes(std::span<const std::int32_t> ids, bool skip) const override {
    return of_->decode_bytes(ids, skip);
  }
  bool is_special(std::int32_t id) const override { return of_->is_special(id); }
  std::string surface(std::int32_t id) const override { return of_->surface(id); }
  std::int32_t vocab_size() const override { return of_->vocab_size(); }
  std::optional<std::int32_t> id_of(std::string_view token) const override { return of_->id_of(token); }
  std::optional<std::int32_t> bos() const override { return of_->bos(); }
  std::optional<std::int32_t> eos() const override { return of_->eos(); }
  std::uint64_t fingerprint() const override { return of_->fingerprint(); }

  mutable std::size_t bytes = 0;  // encoded so far

 private:
  std::unique_ptr<text::Tokenizer> of_;
};

// Tokenizers that put a space before a text, or after special tokens, with texts of 400 turns: no text is encoded twice,
// and the tokens of a part are those of the part.
TEST(TokenPlaces, OfTokenizersThatAddSpacesNeedNoEncoding) {
  const RandomStream random(5, "places");
  const std::vector<std::string> words = {"ship", " of", " the", "\n\n", "  ", " 🙂", "naïve", "1,024", " Whale!"};
  for (const char* path :
       {"inputs/tokenizers/mistral-v1/tokenizer.model", "inputs/tokenizers/mistral-v3/tokenizer.model",
        "tests/golden/tokenizers/mistral-style/tokenizer.json",
        "tests/golden/tokenizers/llama2-style/tokenizer.json"}) {
    const Counting tokenizer(path);
    std::string text = "<s>";
    std::vector<text::chat::Range> parts;
    for (std::uint64_t turn = 0; turn < 400; ++turn) {
      std::string part;
      for (std::uint64_t i = 0; i < 6; ++i) part += words[random.below(words.size(), turn * 8 + i)];
      parts.push_back({text.size(), text.size() + part.size()});
      text += part + "</s><s>";
    }
    Ids ids;
    tokenizer.encode_conversation(text, ids);
    const std::size_t before = tokenizer.bytes;
    const TokenPlaces places(text, ids, tokenizer, true);
    for (const auto& part : parts) {
      const auto [begin, end] = places.of(part);
      ASSERT_LT(begin, end);
      EXPECT_TRUE(tokenizer.is_special(ids[begin - 1])) << path;
      EXPECT_TRUE(tokenizer.is_special(ids[end])) << path;
      const auto specials = places.specials(part.end, text.size());
      ASSERT_FALSE(specials.empty());
      EXPECT_EQ(specials.front().begin, part.end) << path;
      EXPECT_EQ(specials.front().end, part.end + 4) << path;
    }
    EXPECT_EQ(tokenizer.bytes, before) << path << " encoded " << tokenizer.bytes - before << " bytes again";
  }
}

// A word that the vocabulary does not have: only the text between two special tokens is encoded again.
TEST(TokenPlaces, AnUnknownTokenConcernsItsPartOnly) {
  const Counting tokenizer("inputs/tokenizers/minilm/tokenizer.json");
  std::string text;
  std::vector<text::chat::Range> parts;
  for (int i = 0; i < 100; ++i) {
    text += "[SEP]";
    parts.push_back({text.size() + 3, text.size() + 9});
    text += "is unlike 🙂 it";
  }
  Ids ids;
  tokenizer.encode(text, ids, false);
  const std::size_t before = tokenizer.bytes;
  const TokenPlaces places(text, ids, tokenizer, false);
  for (const auto& part : parts) {
    const auto [begin, end] = places.of(part);
    EXPECT_EQ(tokenizer.decode(std::span(ids).subspan(begin, end - begin)), "unlike");
  }
  EXPECT_LT(tokenizer.bytes - before, 4 * text.size());
}

}  // namespace token_places_test
}  // namespace hawser::prepare
