#include "text/tokenizers/unicode.h"

#include <gtest/gtest.h>

namespace hawser::text {
namespace unicode_test {

std::string in(NormalForm form, std::string_view text) {
  std::string out;
  return normalize(form, text, out) ? std::string(text) : out;
}

TEST(Unicode, NormalForms) {
  using enum NormalForm;
  EXPECT_EQ(in(nfc, "e\u0301"), "\u00E9");
  EXPECT_EQ(in(nfd, "\u00E9"), "e\u0301");
  EXPECT_EQ(in(nfc, "\u212B"), "\u00C5");                // a singleton
  EXPECT_EQ(in(nfc, "\u0958"), "\u0915\u093C");          // never composed
  EXPECT_EQ(in(nfc, "a\u0316\u0301"), "\u00E1\u0316");   // a mark of a lower class does not block
  EXPECT_EQ(in(nfc, "a\u0300\u0301"), "\u00E0\u0301");   // one of the same class does
  EXPECT_EQ(in(nfd, "a\u0301\u0316"), "a\u0316\u0301");  // marks are sorted by class
  EXPECT_EQ(in(nfc, "\u1112\u1161\u11AB"), "\uD55C");    // Hangul is computed
  EXPECT_EQ(in(nfd, "\uD55C"), "\u1112\u1161\u11AB");
  EXPECT_EQ(in(nfc, "\u1112\u1161\u11A7"), "\uD558\u11A7");
  EXPECT_EQ(in(nfkc, "\uFB01\uFF21\u00B2"), "fiA2");
  EXPECT_EQ(in(nfkd, "\u1E9B\u0323"), "s\u0323\u0307");
  EXPECT_EQ(in(nfc, "plain \u4E2D"), "plain \u4E2D");
}

TEST(Unicode, Characters) {
  EXPECT_EQ(character_of('a').category(), Category::Ll);
  EXPECT_EQ(character_of(0x4E00).category(), Category::Lo);
  EXPECT_EQ(character_of(0x31350).category(), Category::Lo);  // Unicode 15
  EXPECT_EQ(character_of(0x10FFFF).category(), Category::Cn);
  EXPECT_EQ(character_of(0xD800).category(), Category::Cn);
  EXPECT_EQ(character_of(0x7FFFFFFF).category(), Category::Cn);
  EXPECT_TRUE(character_of(0x301).accent());
  EXPECT_TRUE(character_of('$').punctuation());  // as in BERT, includes ASCII symbols
  EXPECT_FALSE(character_of(0x20AC).punctuation());
  EXPECT_TRUE(character_of(0xBD).numeric());
  EXPECT_EQ(category_named("Zs"), Category::Zs);
  EXPECT_FALSE(category_named("L"));
  std::string lower;
  for (const char32_t c : {U'A', U'\u0130', U'\u03A3', U'\u00DF', U'\u10A0'}) append_lower(c, lower);
  EXPECT_EQ(lower, "ai\u0307\u03C3\u00DF\u2D00");
}

TEST(Unicode, Sets) {
  const CharacterSet set({{'d', 'f'}, {'a', 'b'}, {'c', 'c'}, {'x', 'x'}});
  ASSERT_EQ(set.ranges().size(), 2u);
  EXPECT_EQ(set.ranges()[0].last, U'f');
  EXPECT_EQ((~set).ranges().size(), 3u);
  EXPECT_EQ((~~set).ranges().size(), 2u);
  EXPECT_EQ((set | ~set).ranges().size(), 1u);
}

}  // namespace unicode_test
}  // namespace hawser::text
