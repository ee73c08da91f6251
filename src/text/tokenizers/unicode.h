// Unicode data equal to that of the `tokenizers` library: general categories of Unicode 16, normal forms, lower case,
// and its classes of word, number and punctuation characters. tools/unicode/make_tables.py generates the tables.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hawser::text {

// In the order of the tables.
enum class Category : std::uint8_t {
  Cn,
  Lu,
  Ll,
  Lt,
  Lm,
  Lo,
  Mn,
  Mc,
  Me,
  Nd,
  Nl,
  No,
  Pc,
  Pd,
  Ps,
  Pe,
  Pi,
  Pf,
  Po,
  Sm,
  Sc,
  Sk,
  So,
  Zs,
  Zl,
  Zp,
  Cc,
  Cf,
  Co
};

// Category by its name ("Lu"); nullopt for other names.
std::optional<Category> category_named(std::string_view name);

struct Character {
  std::uint16_t bits = 0;

  Category category() const { return static_cast<Category>(bits >> 8); }
  bool regex_word() const { return bits & 1; }   // \w of tokenizer.json's patterns
  bool word() const { return bits & 2; }         // \w of the Whitespace pre-tokenizer and of `single_word`
  bool numeric() const { return bits & 4; }      // of the Digits pre-tokenizer
  bool punctuation() const { return bits & 8; }  // of the Punctuation and Bert pre-tokenizers
  bool control() const { return bits & 16; }     // dropped by clean_text of BertNormalizer
  bool mark() const { return bits & 32; }        // dropped by StripAccents
  bool accent() const { return bits & 64; }      // dropped by strip_accents of BertNormalizer
};

// Surrogates and values above U+10FFFF are unassigned characters without flags.
Character character_of(char32_t c);

// Unicode property White_Space.
constexpr bool is_white_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// Blocks that BERT treats as Chinese characters.
constexpr bool is_chinese(char32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
         (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
         (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

// Appends the lower case of a character, which does not depend on its neighbours.
void append_lower(char32_t c, std::string& out);
// Lower case of a character if that is one character, else `c`.
char32_t simple_lower(char32_t c);

enum class NormalForm { nfc, nfd, nfkc, nfkd };

// Writes `text`, valid UTF-8, in a normal form to `out`. Returns true and leaves `out` unchanged if `text` is in that
// form already.
bool normalize(NormalForm form, std::string_view text, std::string& out);

// A set of characters: ascending ranges that are neither overlapping nor adjacent.
class CharacterSet {
 public:
  struct Range {
    char32_t first, last;
  };

  CharacterSet() = default;
  // Accepts ranges in any order, also overlapping ones.
  explicit CharacterSet(std::vector<Range> ranges);

  const std::vector<Range>& ranges() const { return ranges_; }
  bool empty() const { return ranges_.empty(); }
  CharacterSet operator|(const CharacterSet& other) const;
  CharacterSet operator~() const;  // within U+0000 to U+10FFFF

  template <class Predicate>
  static CharacterSet where(Predicate predicate);

 private:
  std::vector<Range> ranges_;
};

// Every character whose Character satisfies the predicate.
CharacterSet characters_where(bool (*predicate)(Character, const void*), const void* context);

// Set of a general category ("Lu") or a group of them ("L"); nullopt for other names.
std::optional<CharacterSet> characters_of_category(std::string_view name);

template <class Predicate>
CharacterSet CharacterSet::where(Predicate predicate) {
  return characters_where([](Character c, const void* p) { return (*static_cast<const Predicate*>(p))(c); },
                          &predicate);
}

}  // namespace hawser::text
