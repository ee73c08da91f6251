#include "text/tokenizers/scanner.h"

#include <gtest/gtest.h>

#include <random>

#include "base/cat.h"
#include "base/utf8.h"
#include "text/tokenizers/pattern.h"
#include "text/tokenizers/pre_tokenizer.h"
#include "text/tokenizers/regex.h"
#include "text/tokenizers/unicode.h"

namespace hawser::text {
namespace scanner_test {

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

std::vector<std::string> isolated(const char* pattern, std::string_view text) {
  PreTokenizer pre;
  pre.add(PreTokenizer::Split{Pattern(pattern), SplitBehavior::isolated, false});
  PreTokenizer::Scratch scratch;
  scratch.regex.look_at(text);
  std::vector<std::string> pieces;
  pre.split(text, true, scratch, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

// The pieces are those of `tokenizers` 0.23.3.
TEST(Pattern, MatchesScriptsInsteadOfScriptExtensions) {
  using Pieces = std::vector<std::string>;
  const char* text = "、中〇々ー。㐀";
  EXPECT_EQ(isolated("\\p{Han}+", text), (Pieces{"、", "中〇々", "ー。", "㐀"}));
  EXPECT_EQ(isolated("[^\\p{Han}]+", text), (Pieces{"、", "中〇々", "ー。", "㐀"}));
  EXPECT_EQ(isolated("\\P{Han}+", text), (Pieces{"、", "中〇々", "ー。", "㐀"}));
  EXPECT_EQ(isolated("\\p{Hiragana}", "ーあア\u3099、"), (Pieces{"ー", "あ", "ア\u3099、"}));
  EXPECT_THROW(Pattern("(?<!x)\\p{Alphabetic}"), std::invalid_argument);  // later versions of Unicode changed it
  EXPECT_THROW(Pattern("\\p{Unknown}"), std::invalid_argument);
}

TEST(Pattern, HasTheWordCharactersOfOniguruma) {
  const Regex regex("^\\w$");
  Regex::Scratch scratch;
  for (char32_t c = 0x80; c < 0x323B0; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_utf8(c, text);
    scratch.look_at(text);
    ASSERT_EQ(regex.find(text, 0, scratch).has_value(), character_of(c).regex_word()) << std::hex << unsigned(c);
  }
  for (const char* before : {"", "(?<!x)"}) {  // by the scanner and by PCRE2
    const auto pieces = [&](const char* pattern) { return isolated(cat(before, pattern).c_str(), "²_½"); };
    EXPECT_EQ(pieces("\\w+"), std::vector<std::string>{"²_½"});
    EXPECT_EQ(pieces("[\\w]+"), (std::vector<std::string>{"²", "_", "½"}));  // no numbers inside [ ]
    EXPECT_EQ(pieces("[^\\w]+"), (std::vector<std::string>{"²", "_", "½"}));
  }
  EXPECT_EQ(isolated("(?<= )\\w+", "b½c ② d₄"), (std::vector<std::string>{"b½c ② ", "d", "₄"}));
}

TEST(Pattern, RepeatsUpToALimit) {
  EXPECT_EQ(isolated("a{,2}b", "aaab"), (std::vector<std::string>{"a", "aab"}));
  EXPECT_EQ(isolated("[{,2}]+", "a{,2}b"), (std::vector<std::string>{"a", "{,2}", "b"}));
  EXPECT_EQ(isolated("a{,}", "aa{,}"), (std::vector<std::string>{"a", "a{,}"}));
}

TEST(Pattern, RejectsWhatOnigurumaMatchesDifferently) {
  const auto rejected = [](const char* pattern) -> std::string {
    try {
      Pattern{pattern};
    } catch (const std::invalid_argument& error) {
      const std::string_view what = error.what();
      return std::string(what.substr(what.find(": ") + 2));
    }
    return "accepted";
  };
  EXPECT_EQ(rejected("a(?i)b|c"), "(?i) after the start of a pattern");
  EXPECT_EQ(rejected("(?i:ss)"), "letters ss in (?i)");
  EXPECT_EQ(rejected("(?i:a|S(?:\\x74))"), "letters st in (?i)");
  EXPECT_EQ(rejected("(?i)fi"), "letters fi in (?i)");
  EXPECT_EQ(rejected("(?i:ß)"), "U+00DF in (?i)");
  EXPECT_EQ(rejected("(?i:ŉ)"), "U+0149 in (?i)");
  EXPECT_EQ(rejected("(?i:[\\u0080-\\u00ff])"), "U+0080 to U+00FF in (?i)");
  EXPECT_EQ(rejected("(?i:[\\p{L}x])"), "\\p{L} inside [ ] in (?i)");
  EXPECT_EQ(rejected("x(?:a*|b)+"), "repeated group that may be empty: (?:a*|b)+");
  EXPECT_EQ(rejected("(?:a{0,2}){2,}"), "repeated group that may be empty: (?:a{0,2}){2,}");
  for (const char* pattern :
       {"(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?i:[sdmt]|ll|ve|re)", "(?i)a|b", "(?i:é|[\\s\\p{N}’])", "ss", "(?i:s)s",
        "(?i:s|s+s|[s]s)", "(?:a*|b)?", "(?:a*b|c)+", "(?:a|b?){2}", "(?:\\s*[\\r\\n]+)*", "[(?i)ß]", "\\(?i\\)"}) {
    EXPECT_EQ(rejected(pattern), "accepted") << pattern;
  }
}

TEST(Pattern, FoldsLatin1) {
  EXPECT_FALSE(Scanner::compile("(?i:[\\u0080-\\u00de])"));
  EXPECT_FALSE(Scanner::compile("(?i:[\\u0100-\\U0010ffff])"));
  EXPECT_EQ(isolated("(?i:[\\x{e0}-\\x{ff}])", "aŸb"), (std::vector<std::string>{"a", "Ÿ", "b"}));
}

}  // namespace scanner_test
}  // namespace hawser::text
