#include "text/tokenizers/pattern_check.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "base/utf8.h"

namespace hawser::text {
namespace {

// Characters beyond ASCII that Unicode's full case folding maps to several characters, and those that it maps to a part
// of such a sequence.
constexpr auto kFolding = std::to_array<std::pair<char32_t, char32_t>>({
    {0xdf, 0xdf},     {0x130, 0x130},   {0x149, 0x149},   {0x17f, 0x17f},   {0x1f0, 0x1f0},   {0x2bc, 0x2bc},
    {0x2be, 0x2be},   {0x300, 0x301},   {0x307, 0x308},   {0x30a, 0x30a},   {0x30c, 0x30c},   {0x313, 0x313},
    {0x331, 0x331},   {0x342, 0x342},   {0x345, 0x345},   {0x386, 0x386},   {0x389, 0x389},   {0x38f, 0x391},
    {0x397, 0x397},   {0x399, 0x399},   {0x3a1, 0x3a1},   {0x3a5, 0x3a5},   {0x3a9, 0x3a9},   {0x3ac, 0x3ac},
    {0x3ae, 0x3ae},   {0x3b0, 0x3b1},   {0x3b7, 0x3b7},   {0x3b9, 0x3b9},   {0x3c1, 0x3c1},   {0x3c5, 0x3c5},
    {0x3c9, 0x3c9},   {0x3ce, 0x3ce},   {0x3f1, 0x3f1},   {0x535, 0x535},   {0x53b, 0x53b},   {0x53d, 0x53d},
    {0x544, 0x544},   {0x546, 0x546},   {0x54e, 0x54e},   {0x552, 0x552},   {0x565, 0x565},   {0x56b, 0x56b},
    {0x56d, 0x56d},   {0x574, 0x574},   {0x576, 0x576},   {0x57e, 0x57e},   {0x582, 0x582},   {0x587, 0x587},
    {0x1e96, 0x1e9a}, {0x1e9e, 0x1e9e}, {0x1f00, 0x1f0f}, {0x1f20, 0x1f2f}, {0x1f50, 0x1f50}, {0x1f52, 0x1f52},
    {0x1f54, 0x1f54}, {0x1f56, 0x1f56}, {0x1f60, 0x1f70}, {0x1f74, 0x1f74}, {0x1f7c, 0x1f7c}, {0x1f80, 0x1faf},
    {0x1fb2, 0x1fb4}, {0x1fb6, 0x1fb7}, {0x1fba, 0x1fba}, {0x1fbc, 0x1fbc}, {0x1fbe, 0x1fbe}, {0x1fc2, 0x1fc4},
    {0x1fc6, 0x1fc7}, {0x1fca, 0x1fca}, {0x1fcc, 0x1fcc}, {0x1fd2, 0x1fd3}, {0x1fd6, 0x1fd7}, {0x1fe2, 0x1fe4},
    {0x1fe6, 0x1fe7}, {0x1ff2, 0x1ff4}, {0x1ff6, 0x1ff7}, {0x1ffa, 0x1ffa}, {0x1ffc, 0x1ffc}, {0x2126, 0x2126},
    {0xfb00, 0xfb06}, {0xfb13, 0xfb17},
});

bool overlaps_folding(char32_t first, char32_t last) {
  return std::any_of(kFolding.begin(), kFolding.end(),
                     [&](const auto& range) { return range.first <= last && first <= range.second; });
}

class Checker {
 public:
  explicit Checker(std::string_view pattern) : pattern_(pattern) {}

  void run() {
    while (at_ < pattern_.size()) {
      switch (peek()) {
        case '(':
          open();
          break;
        case ')':
          close();
          break;
        case '|':
          ++at_;
          end_alternative();
          break;
        case '[':
          bracket();
          add_atom(false);
          break;
        case '\\':
          escape();
          break;
        case '^':
        case '$':
          ++at_;
          before_ = 0;
          add_atom(true);
          break;
        case '.':
          ++at_;
          before_ = 0;
          add_atom(false);
          break;
        default:
          literal(character());
      }
    }
  }

 private:
  struct Group {
    std::size_t begin = 0;
    bool ignore_case = false;  // before the group
    bool look = false;
    bool may_be_empty = false;  // an earlier alternative
    bool alternative_may_be_empty = true;
  };

  char peek(std::size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }

  char32_t character() {
    const Utf8Step step = utf8_step(pattern_.substr(at_));
    at_ += step.bytes;
    return step.character;
  }

  void end_alternative() {
    Group& group = groups_.back();
    group.may_be_empty |= group.alternative_may_be_empty;
    group.alternative_may_be_empty = true;
    before_ = 0;
  }

  void open() {
    Group group{.begin = at_++, .ignore_case = ignore_case_};
    if (peek() == '?') {
      ++at_;
      if (peek() == '<' && peek(1) != '=' && peek(1) != '!') {
        at_ = std::min(pattern_.find('>', at_), pattern_.size() - 1) + 1;
      } else if (std::isalpha(static_cast<unsigned char>(peek())) || peek() == '-') {
        bool value = true;
        for (; std::isalpha(static_cast<unsigned char>(peek())) || peek() == '-'; ++at_) {
          if (peek() == '-') value = false;
          if (peek() == 'i') ignore_case_ = value;
        }
        if (peek() == ')') {
          ++at_;
          // In the middle, Oniguruma extends the scope over the following alternatives: a(?i)b|c is a(?i:b|c).
          if (group.begin > 0) throw unsupported_construct(cat(shown(group.begin), " after the start of a pattern"));
          return;
        }
        ++at_;
      } else {
        group.look = peek() != ':' && peek() != '>';
        at_ += peek() == '<' ? 2 : 1;
      }
    }
    if (group.look) before_ = 0;
    groups_.push_back(group);
  }

  void close() {
    ++at_;
    if (groups_.size() == 1) return;  // the engine reports it
    const Group group = groups_.back();
    groups_.pop_back();
    ignore_case_ = group.ignore_case;
    if (group.look) before_ = 0;
    const bool may_be_empty = group.may_be_empty || group.alternative_may_be_empty;
    const bool unbounded = add_atom(may_be_empty || group.look);
    if (may_be_empty && unbounded)
      throw unsupported_construct(cat("repeated group that may be empty: ", shown(group.begin)));
  }

  // Adds an atom to its alternative and reads its quantifier. Returns whether that has no upper limit.
  bool add_atom(bool may_be_empty) {
    bool unbounded = false;
    std::size_t width = 0;
    if (const char c = peek(); c == '?' || c == '*' || c == '+') {
      width = 1;
      may_be_empty |= c != '+';
      unbounded = c != '?';
    } else if (c == '{') {
      const std::size_t end = pattern_.find('}', at_);
      const std::string_view limits = end == std::string_view::npos ? "" : pattern_.substr(at_ + 1, end - at_ - 1);
      if (!limits.empty() && limits != "," && limits.find_first_not_of("0123456789,") == std::string_view::npos) {
        width = limits.size() + 2;
        may_be_empty |= limits.find_first_not_of('0') == std::string_view::npos || limits[0] == ',' ||
                        limits.substr(0, limits.find(',')).find_first_not_of('0') == std::string_view::npos;
        unbounded = limits.back() == ',';
      }
    }
    if (width > 0) {
      before_ = 0;
      at_ += width;
      if (peek() == '?' || peek() == '+') ++at_;
    }
    if (!may_be_empty) groups_.back().alternative_may_be_empty = false;
    return unbounded;
  }

  void literal(char32_t c) {
    const char32_t before = std::exchange(before_, 0);
    if (ignore_case_) {
      if (overlaps_folding(c, c)) throw unsupported_construct(cat("U+", hexadecimal(c), " in (?i)"));
      before_ = c < 0x80 ? static_cast<char32_t>(std::tolower(static_cast<int>(c))) : c;
      for (const std::u32string_view pair : {U"ss", U"st", U"ff", U"fi", U"fl"}) {
        if (pair[0] == before && pair[1] == before_) {
          throw unsupported_construct(
              cat("letters ", static_cast<char>(before), static_cast<char>(before_), " in (?i)"));
        }
      }
    }
    add_atom(false);
  }

  // Reads the character of \x41, \x{41} or \u0041. Returns false, at the backslash, for other escapes of letters and
  // digits.
  bool escaped_character(char32_t& out) {
    const char kind = peek(1);
    std::size_t from = at_ + 2, size = kind == 'x' ? 2 : 4;
    if (kind == 'x' && peek(2) == '{') {
      ++from;
      size = std::min(pattern_.find('}', from), pattern_.size()) - from;
    } else if (kind != 'x' && kind != 'u') {
      if (std::isalnum(static_cast<unsigned char>(kind))) return false;
      ++at_;
      if (at_ == pattern_.size()) return false;
      out = character();
      return true;
    }
    const std::string_view digits = pattern_.substr(std::min(from, pattern_.size()), size);
    std::uint32_t value = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
    out = value;
    at_ = std::min(from + size + (from > at_ + 2 ? 1 : 0), pattern_.size());
    return true;
  }

  // Reads the rest of a set such as \s or \p{L}. Returns its text.
  std::string_view escaped_set() {
    const std::size_t begin = at_;
    const bool property = (peek(1) == 'p' || peek(1) == 'P') && peek(2) == '{';
    at_ = property ? std::min(pattern_.find('}', at_), pattern_.size() - 1) + 1 : std::min(at_ + 2, pattern_.size());
    return pattern_.substr(begin, at_ - begin);
  }

  static bool has_no_letters(std::string_view set) {
    if (set.starts_with("\\p{")) return std::string_view("NPSZ").find(set.substr(3, 1)) != std::string_view::npos;
    return set.size() == 2 && std::string_view("sdrntfae").find(set[1]) != std::string_view::npos;
  }

  void escape() {
    char32_t c;
    if (escaped_character(c)) return literal(c);
    if (at_ == pattern_.size()) return;
    before_ = 0;
    const char kind = peek(1);
    escaped_set();
    add_atom(kind == 'A' || kind == 'z');
  }

  // In a class, Oniguruma folds case after it has added all members.
  void bracket() {
    ++at_;
    before_ = 0;
    if (peek() == '^') ++at_;
    for (bool first = true; at_ < pattern_.size() && (first || peek() != ']'); first = false) {
      const auto member = [&](char32_t& out) {
        if (peek() == '\\') return escaped_character(out);
        out = character();
        return true;
      };
      char32_t low, high;
      if (!member(low)) {
        if (at_ == pattern_.size()) return;
        const std::string_view set = escaped_set();
        if (ignore_case_ && !has_no_letters(set)) throw unsupported_construct(cat(set, " inside [ ] in (?i)"));
        continue;
      }
      high = low;
      if (peek() == '-' && peek(1) != ']' && peek(1) != '\0') {
        ++at_;
        if (!member(high)) high = low;
      }
      if (ignore_case_ && overlaps_folding(low, high)) {
        throw unsupported_construct(
            cat("U+", hexadecimal(low), low == high ? "" : cat(" to U+", hexadecimal(high)), " in (?i)"));
      }
    }
    if (at_ < pattern_.size()) ++at_;
  }

  static std::string hexadecimal(char32_t c) {
    char digits[12];
    std::snprintf(digits, sizeof digits, "%04X", static_cast<unsigned>(c));
    return digits;
  }

  std::string_view shown(std::size_t from) const { return pattern_.substr(from, at_ - from); }

  std::string_view pattern_;
  std::size_t at_ = 0;
  bool ignore_case_ = false;
  char32_t before_ = 0;  // the adjacent character before, in lower case, if it ignores case
  std::vector<Group> groups_{1};
};

}  // namespace

std::invalid_argument unsupported_construct(std::string_view construct) {
  return std::invalid_argument(cat("regular expression construct not supported: ", construct));
}

void check_pattern(std::string_view pattern) {
  Checker(pattern).run();
}

}  // namespace hawser::text
