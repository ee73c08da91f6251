#include "data/tokenizers/scanner.h"

#include <gtest/gtest.h>

#include <random>

#include "base/utf8.h"
#include "data/tokenizers/pattern.h"
#include "data/tokenizers/regex.h"

namespace hawser::data {
namespace {

// Patterns of published tokenizers, and some that depend on the order of alternatives.
constexpr const char* kPatterns[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "
    "?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+",
    "[一-龥぀-ゟ゠-ヿ]+",
    R"(\p{N}{1,3})",
    R"(a|ab|abc|b+c?|(?:ca?)+)",
    R"((?:a|ab)(?:c|bcd)?(?=d)|ab*|x(?!\d))",
    R"(\w+|[^\w\s]+)",
    R"([0-9][0-9][0-9])",
    R"(a*)",
};

TEST(Scanner, MatchesLikeABacktrackingEngine) {
  std::vector<std::string> pieces = {
      "a",  "b",  "c",   "d",  "x",  "ab",     "A",      "Z",      "'s",     "'LL",    "'\u017F",    "'re",
      " ",  "  ", "\n",  "\r", "\t", "1",      "23",     "\u0663", "\u00B2", "\u00E9", "e\u0301",    "\u4E2D",
      "あ", "!",  "...", "/",  "'",  "\u00A0", "\u3000", "\u01C5", "\u02B0", "\u0915", "\U0001F600", "\U00031350",
      "_",  "-",  "$",   "+",  "~",  "\\",     "]",      "\x1D",   "\u0378", "\uFFFD", "\u212A",     "\u0130"};
  // Runs of letters, alone and after a space: the matches of CommonRun.
  pieces.insert(pieces.end(),
                {"letters", "Letters", "withoutanybreak", "UPPERANDLOWERcase", " words follow", " each other"});
  for (const char* pattern : kPatterns) {
    const auto scanner = Scanner::compile(pattern);
    ASSERT_TRUE(scanner) << pattern;
    const Pattern fast(pattern);
    const Regex slow(pattern);
    Regex::Scratch scratch;
    std::mt19937 dice(7);
    for (int round = 0; round < 4000; ++round) {
      std::string text;
      const int count = static_cast<int>(dice() % 16);
      for (int i = 0; i < count; ++i) text += pieces[dice() % pieces.size()];
      scratch.look_at(text);
      for (std::size_t from = 0; from <= text.size();) {
        const auto expected = slow.find(text, from, scratch), found = fast.find(text, from, scratch);
        ASSERT_EQ(expected.has_value(), found.has_value()) << pattern << " in " << text << " from " << from;
        if (!expected) break;
        ASSERT_EQ(expected->begin, found->begin) << pattern << " in " << text << " from " << from;
        ASSERT_EQ(expected->end, found->end) << pattern << " in " << text << " from " << from;
        from = expected->end > from ? expected->end : from + 1;
        while (from < text.size() && (static_cast<unsigned char>(text[from]) & 0xC0) == 0x80) ++from;
      }
    }
  }
}

TEST(Scanner, ReportsWhetherMatchesHaveNoGaps) {
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(Scanner::compile(kPatterns[i])->total()) << i;
  EXPECT_FALSE(Scanner::compile("\\p{N}{1,3}")->total());
  EXPECT_FALSE(Scanner::compile("a*")->total());
  EXPECT_TRUE(Scanner::compile("a*")->matches_empty());
}

TEST(Scanner, RejectsPatternsOutsideTheSubset) {
  for (const char* pattern : {"a+?", "a++", "(?<=a)b", "(a)\\1", "^a", "a$", "\\bx", "(?=ab)", "(?i:\u00E9)", "a{1,99}",
                              "[a", "(a", "a{2}{3}", "*", "\\p{Script=Greek}", "[[:alpha:]]", "[a&&b]", "\\"}) {
    EXPECT_FALSE(Scanner::compile(pattern)) << pattern;
  }
}

}  // namespace
}  // namespace hawser::data
