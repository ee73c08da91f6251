#include "text/tokenizers/unicode.h"

#include <algorithm>
#include <array>
#include <bit>
#include <unordered_map>

#include "base/utf8.h"

namespace hawser::text {
namespace {

#include "text/tokenizers/unicode_tables.inc"

constexpr char32_t kEnd = 0x110000;

// Two-stage table: index of a block of 256 characters; each distinct block is stored once.
struct CharacterTable {
  std::array<std::uint16_t, kEnd / 256> block{};
  std::vector<std::array<std::uint16_t, 256>> blocks;

  CharacterTable() {
    std::vector<std::uint16_t> all(kEnd);
    const std::size_t runs = std::size(kProperties);
    for (std::size_t i = 0; i < runs; ++i) {
      const char32_t first = kProperties[i] >> 16;
      const char32_t end = i + 1 < runs ? kProperties[i + 1] >> 16 : kEnd;
      std::fill(all.begin() + first, all.begin() + end, kProperties[i] & 0xFFFF);
    }
    std::fill(all.begin() + 0xD800, all.begin() + 0xE000, 0);
    for (std::size_t b = 0; b < block.size(); ++b) {
      std::array<std::uint16_t, 256> now;
      std::copy_n(all.begin() + b * 256, 256, now.begin());
      const auto found = std::find(blocks.rbegin(), blocks.rend(), now);
      block[b] = static_cast<std::uint16_t>(found == blocks.rend() ? blocks.size() : blocks.rend() - found - 1);
      if (found == blocks.rend()) blocks.push_back(now);
    }
  }
};

const CharacterTable& character_table() {
  static const CharacterTable kTable;
  return kTable;
}

// Code point -> characters, from a table of the .inc file.
class Mapping {
 public:
  template <std::size_t n>
  explicit Mapping(const char32_t (&table)[n]) {
    for (std::size_t i = 0; i < n; i += 2 + table[i + 1]) entries_.emplace(table[i], &table[i + 1]);
  }
  // Empty if there is no entry.
  std::u32string_view find(char32_t c) const {
    const auto found = entries_.find(c);
    return found == entries_.end() ? std::u32string_view() : std::u32string_view(found->second + 1, *found->second);
  }
  template <class Visit>
  void for_each(Visit visit) const {
    for (const auto& [c, text] : entries_) visit(c);
  }

 private:
  std::unordered_map<char32_t, const char32_t*> entries_;
};

struct NormalForms {
  Mapping canonical{kCanonical}, compatible{kCompatible};
  std::unordered_map<std::uint64_t, char32_t> composed;
  std::unordered_map<char32_t, std::uint8_t> classes;

  NormalForms() {
    for (std::size_t i = 0; i < std::size(kCompositions); i += 3) {
      composed.emplace(std::uint64_t{kCompositions[i]} << 32 | kCompositions[i + 1], kCompositions[i + 2]);
    }
    for (const std::uint32_t entry : kCombining) classes.emplace(entry >> 8, static_cast<std::uint8_t>(entry));
    mark_affected();
  }
  // Whether `c` may change in this form. A text without such characters is in the form already.
  bool affects(NormalForm form, char32_t c) const { return affected[c] >> static_cast<int>(form) & 1; }

  std::uint8_t combining(char32_t c) const {
    if (c < 0x300) return 0;
    const auto found = classes.find(c);
    return found == classes.end() ? 0 : found->second;
  }

 private:
  void mark_affected() {
    constexpr std::uint8_t kNfc = 1, kNfd = 2, kNfkc = 4, kNfkd = 8;
    canonical.for_each([&](char32_t c) { affected[c] |= kNfc | kNfd | kNfkc | kNfkd; });
    for (const auto& [pair, joined] : composed) affected[joined] &= ~(kNfc | kNfkc);
    compatible.for_each([&](char32_t c) { affected[c] |= kNfkc | kNfkd; });
    for (const auto& [pair, joined] : composed) affected[pair & 0xFFFFFFFF] |= kNfc | kNfkc;
    for (const auto& [c, value] : classes) affected[c] |= kNfc | kNfd | kNfkc | kNfkd;
    for (char32_t c = 0xAC00; c < 0xAC00 + 11172; ++c) affected[c] |= kNfd | kNfkd;
    for (char32_t c = 0x1161; c < 0x11C3; ++c) affected[c] |= kNfc | kNfkc;  // vowels and trailing consonants
  }

  std::vector<std::uint8_t> affected = std::vector<std::uint8_t>(kEnd);  // by character: one bit per form
};

const NormalForms& normal_forms() {
  static const NormalForms kForms;
  return kForms;
}

const Mapping& lower_case() {
  static const Mapping kLowerCase(kLower);
  return kLowerCase;
}

// Hangul syllables are composed by arithmetic: leading consonant, vowel, trailing consonant.
constexpr char32_t kSyllables = 0xAC00, kLeading = 0x1100, kVowels = 0x1161, kTrailing = 0x11A7;
constexpr char32_t kVowelCount = 21, kTrailingCount = 28, kSyllableCount = 11172;

void decompose(char32_t c, bool compatible, std::u32string& out) {
  if (c < 0xA0) {
    out += c;
    return;
  }
  if (c - kSyllables < kSyllableCount) {
    const char32_t index = c - kSyllables;
    out += kLeading + index / (kVowelCount * kTrailingCount);
    out += kVowels + index / kTrailingCount % kVowelCount;
    if (index % kTrailingCount) out += kTrailing + index % kTrailingCount;
    return;
  }
  const NormalForms& forms = normal_forms();
  std::u32string_view parts;
  if (compatible) parts = forms.compatible.find(c);
  if (parts.empty()) parts = forms.canonical.find(c);
  if (parts.empty()) {
    out += c;
  } else {
    out += parts;
  }
}

// Sorts each run of marks by combining class; the sort is stable.
void reorder(std::u32string& text) {
  const NormalForms& forms = normal_forms();
  for (std::size_t i = 0; i < text.size();) {
    if (forms.combining(text[i]) == 0) {
      ++i;
      continue;
    }
    std::size_t end = i;
    while (end < text.size() && forms.combining(text[end]) != 0) ++end;
    std::stable_sort(text.begin() + i, text.begin() + end,
                     [&](char32_t a, char32_t b) { return forms.combining(a) < forms.combining(b); });
    i = end;
  }
}

// The character that two compose to; 0 for none.
char32_t compose_pair(char32_t first, char32_t second) {
  if (first - kLeading < 19 && second - kVowels < kVowelCount) {
    return kSyllables + ((first - kLeading) * kVowelCount + (second - kVowels)) * kTrailingCount;
  }
  if (first - kSyllables < kSyllableCount && (first - kSyllables) % kTrailingCount == 0 && second > kTrailing &&
      second < kTrailing + kTrailingCount) {
    return first + (second - kTrailing);
  }
  const auto& composed = normal_forms().composed;
  const auto found = composed.find(std::uint64_t{first} << 32 | second);
  return found == composed.end() ? 0 : found->second;
}

void compose(std::u32string& text) {
  const NormalForms& forms = normal_forms();
  std::size_t out = 0, starter = std::u32string::npos;
  int last_class = -1;  // of the last mark kept after the starter; -1: none
  for (const char32_t c : text) {
    const int mark = forms.combining(c);
    if (starter != std::u32string::npos && last_class < mark) {
      if (const char32_t joined = compose_pair(text[starter], c)) {
        text[starter] = joined;
        continue;
      }
    }
    if (mark == 0) {
      starter = out;
      last_class = -1;
    } else {
      last_class = mark;
    }
    text[out++] = c;
  }
  text.resize(out);
}

}  // namespace

std::optional<Category> category_named(std::string_view name) {
  static constexpr std::string_view kNames = "CnLuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCo";
  for (std::size_t i = 0; name.size() == 2 && i < kNames.size(); i += 2) {
    if (kNames.substr(i, 2) == name) return static_cast<Category>(i / 2);
  }
  return std::nullopt;
}

std::optional<CharacterSet> characters_of_category(std::string_view name) {
  if (const auto category = category_named(name)) {
    return CharacterSet::where([&](Character x) { return x.category() == *category; });
  }
  const auto between = [](Category first, Category last) {
    return CharacterSet::where([=](Character x) { return x.category() >= first && x.category() <= last; });
  };
  using enum Category;
  if (name == "L") return between(Lu, Lo);
  if (name == "M") return between(Mn, Me);
  if (name == "N") return between(Nd, No);
  if (name == "P") return between(Pc, Po);
  if (name == "S") return between(Sm, So);
  if (name == "Z") return between(Zs, Zp);
  if (name == "C") return between(Cn, Cn) | between(Cc, Co);
  return std::nullopt;
}

Character character_of(char32_t c) {
  const CharacterTable& table = character_table();
  return c < kEnd ? Character{table.blocks[table.block[c >> 8]][c & 255]} : Character{};
}

char32_t simple_lower(char32_t c) {
  if (c < 0x80) return c - 'A' < 26u ? c + 32 : c;
  const auto lower = lower_case().find(c);
  return lower.size() == 1 ? lower[0] : c;
}

void append_lower(char32_t c, std::string& out) {
  if (c < 0x80) {
    out += static_cast<char>(c - 'A' < 26u ? c + 32 : c);
    return;
  }
  const auto lower = lower_case().find(c);
  if (lower.empty()) return append_utf8(c, out);
  for (const char32_t l : lower) append_utf8(l, out);
}

bool normalize(NormalForm form, std::string_view text, std::string& out) {
  // No character below U+0300 is a mark or the second of a composed pair; none below U+0080 decomposes.
  const unsigned char min = form == NormalForm::nfc ? 0xCC : 0x80;
  const NormalForms* forms = nullptr;
  bool same = true;
  for (std::size_t at = 0; same && at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < min) {
      ++at;
      continue;
    }
    if (!forms) forms = &normal_forms();
    const Utf8Step step = utf8_step(text.substr(at));
    same = !forms->affects(form, step.character);
    at += step.bytes;
  }
  if (same) return true;
  std::u32string characters;
  characters.reserve(text.size());
  const bool compatible = form == NormalForm::nfkc || form == NormalForm::nfkd;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text.substr(at));
    decompose(step.character, compatible, characters);
    at += step.bytes;
  }
  reorder(characters);
  if (form == NormalForm::nfc || form == NormalForm::nfkc) compose(characters);
  out.clear();
  for (const char32_t c : characters) append_utf8(c, out);
  return false;
}

CharacterSet::CharacterSet(std::vector<Range> ranges) {
  std::sort(ranges.begin(), ranges.end(), [](Range a, Range b) { return a.first < b.first; });
  for (const Range& range : ranges) {
    if (!ranges_.empty() && range.first <= ranges_.back().last + 1) {
      ranges_.back().last = std::max(ranges_.back().last, range.last);
    } else {
      ranges_.push_back(range);
    }
  }
}

CharacterSet CharacterSet::operator|(const CharacterSet& other) const {
  std::vector<Range> both = ranges_;
  both.insert(both.end(), other.ranges_.begin(), other.ranges_.end());
  return CharacterSet(std::move(both));
}

CharacterSet CharacterSet::operator~() const {
  CharacterSet out;
  char32_t next = 0;
  for (const Range& range : ranges_) {
    if (range.first > next) out.ranges_.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next < kEnd) out.ranges_.push_back({next, kEnd - 1});
  return out;
}

CharacterSet characters_where(bool (*predicate)(Character, const void*), const void* context) {
  std::vector<CharacterSet::Range> ranges;
  const std::size_t runs = std::size(kProperties);
  for (std::size_t i = 0; i < runs; ++i) {
    const char32_t end = i + 1 < runs ? kProperties[i + 1] >> 16 : kEnd;
    if (predicate(Character{static_cast<std::uint16_t>(kProperties[i] & 0xFFFF)}, context)) {
      ranges.push_back({static_cast<char32_t>(kProperties[i] >> 16), end - 1});
    }
  }
  return CharacterSet(std::move(ranges));
}

}  // namespace hawser::text
