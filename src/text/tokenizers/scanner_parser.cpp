#include "text/tokenizers/scanner_parser.h"

#include "base/utf8.h"

namespace hawser::text {
namespace {

struct NotOfTheSubset {};

using Kind = PatternNode::Kind;

CharacterSet one(char32_t c) {
  return CharacterSet({{c, c}});
}

CharacterSet white_space() {
  return CharacterSet({{9, 13},
                       {' ', ' '},
                       {0x85, 0x85},
                       {0xA0, 0xA0},
                       {0x1680, 0x1680},
                       {0x2000, 0x200A},
                       {0x2028, 0x2029},
                       {0x202F, 0x202F},
                       {0x205F, 0x205F},
                       {0x3000, 0x3000}});
}

class Parser {
 public:
  explicit Parser(std::string_view pattern) : pattern_(pattern) {}

  PatternNode run() {
    PatternNode node = either();
    if (at_ != pattern_.size()) throw NotOfTheSubset();
    return node;
  }

 private:
  bool done() const { return at_ == pattern_.size(); }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  bool take(std::string_view text) {
    if (pattern_.substr(at_, text.size()) != text) return false;
    at_ += text.size();
    return true;
  }
  char32_t character() {
    if (done()) throw NotOfTheSubset();
    const Utf8Step step = utf8_step(pattern_.substr(at_));
    if (!step.valid) throw NotOfTheSubset();
    at_ += step.bytes;
    return step.character;
  }

  PatternNode either() {
    if (++depth_ > 50) throw NotOfTheSubset();
    PatternNode node{.kind = Kind::either};
    do node.children.push_back(sequence());
    while (take("|"));
    --depth_;
    return node.children.size() == 1 ? std::move(node.children[0]) : node;
  }

  PatternNode sequence() {
    PatternNode node{.kind = Kind::sequence};
    while (!done() && peek() != '|' && peek() != ')') node.children.push_back(quantified(atom()));
    return node;
  }

  PatternNode quantified(PatternNode node) {
    int min = 1, max = 1;
    if (take("?")) {
      min = 0;
    } else if (take("*")) {
      min = 0;
      max = -1;
    } else if (take("+")) {
      max = -1;
    } else if (peek() == '{') {
      ++at_;
      min = number();
      max = min;
      if (take(",")) max = peek() == '}' ? -1 : number();
      if (!take("}") || (max >= 0 && max < min) || min > 64 || max > 64) throw NotOfTheSubset();
    } else {
      return node;
    }
    // Lazy, possessive and nested quantifiers, and a quantified lookahead.
    if (peek() == '?' || peek() == '+' || peek() == '*' || peek() == '{' || node.kind == Kind::look) {
      throw NotOfTheSubset();
    }
    PatternNode out{.kind = Kind::repeat, .min = min, .max = max};
    out.children.push_back(std::move(node));
    return out;
  }

  int number() {
    int value = 0;
    if (peek() < '0' || peek() > '9') throw NotOfTheSubset();
    while (peek() >= '0' && peek() <= '9' && value < 1000) value = value * 10 + (pattern_[at_++] - '0');
    return value;
  }

  PatternNode atom() {
    if (take("(")) return group();
    if (peek() == '[') return set_node(bracket());
    if (take(".")) return set_node(~one('\n'));
    if (peek() == '\\') {
      ++at_;
      return set_node(escape(false));
    }
    const char c = peek();
    if (c == '^' || c == '$' || c == '?' || c == '*' || c == '+' || c == '{' || c == ')') throw NotOfTheSubset();
    return set_node(one(character()));
  }

  PatternNode set_node(CharacterSet set) {
    if (ignore_case_) set = both_cases(set);
    return PatternNode{.kind = Kind::set, .set = std::move(set)};
  }

  PatternNode group() {
    if (!take("?")) return close(either());
    if (take(":")) return close(either());
    if (take("i:")) {
      const bool before = ignore_case_;
      ignore_case_ = true;
      PatternNode node = close(either());
      ignore_case_ = before;
      return node;
    }
    const bool negative = peek() == '!';
    if (!take("!") && !take("=")) throw NotOfTheSubset();
    const PatternNode inner = close(either());
    const PatternNode* set = &inner;
    while (set->kind == Kind::sequence && set->children.size() == 1) set = &set->children[0];
    if (set->kind != Kind::set) throw NotOfTheSubset();
    return PatternNode{.kind = Kind::look, .set = negative ? ~set->set : set->set, .end = negative};
  }

  PatternNode close(PatternNode node) {
    if (!take(")")) throw NotOfTheSubset();
    return node;
  }

  // Reads an escape after its backslash.
  CharacterSet escape(bool in_class) {
    const char32_t c = character();
    switch (c) {
      case 's':
        return white_space();
      case 'S':
        return ~white_space();
      case 'd':
      case 'D': {
        const CharacterSet digits = CharacterSet::where([](Character x) { return x.category() == Category::Nd; });
        return c == 'd' ? digits : ~digits;
      }
      case 'w':
      case 'W': {
        // Inside [ ], Oniguruma's \w has no numbers such as U+00B2.
        const CharacterSet word = CharacterSet::where(
            [=](Character x) { return x.regex_word() && !(in_class && x.category() == Category::No); });
        return c == 'w' ? word : ~word;
      }
      case 'p':
      case 'P':
        return property(c == 'P');
      case 'r':
        return one('\r');
      case 'n':
        return one('\n');
      case 't':
        return one('\t');
      case 'f':
        return one('\f');
      case 'v':
        return one('\v');
      case 'u':
        return one(hexadecimal(4));
      case 'x':
        return one(hexadecimal(2));
      default:
        break;
    }
    if (c >= 0x80 || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z')) throw NotOfTheSubset();
    return one(c);
  }

  char32_t hexadecimal(int digits) {
    char32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
      if (digit < 0) throw NotOfTheSubset();
      value = value * 16 + digit;
      ++at_;
    }
    return value;
  }

  // Reads {Name} after \p: a general category or a group of them. Regex handles other properties.
  CharacterSet property(bool negated) {
    const std::size_t close = pattern_.find('}', at_);
    if (peek() != '{' || close == std::string_view::npos) throw NotOfTheSubset();
    const std::string_view name = pattern_.substr(at_ + 1, close - at_ - 1);
    at_ = close + 1;
    const auto set = characters_of_category(name);
    if (!set) throw NotOfTheSubset();
    return negated ? ~*set : *set;
  }

  CharacterSet bracket() {
    ++at_;
    const bool negated = take("^");
    CharacterSet set;
    bool first = true;
    while (first || peek() != ']') {
      if (done() || peek() == '[' || (peek() == '&' && peek(1) == '&') || (first && peek() == ']')) {
        throw NotOfTheSubset();
      }
      first = false;
      CharacterSet item = member();
      const bool single = item.ranges().size() == 1 && item.ranges()[0].first == item.ranges()[0].last;
      if (peek() == '-' && peek(1) != ']' && peek(1) != '\0') {
        if (!single) throw NotOfTheSubset();
        ++at_;
        if (peek() == '[') throw NotOfTheSubset();
        const CharacterSet last = member();
        if (last.ranges().size() != 1 || last.ranges()[0].first != last.ranges()[0].last ||
            last.ranges()[0].first < item.ranges()[0].first) {
          throw NotOfTheSubset();
        }
        item = CharacterSet({{item.ranges()[0].first, last.ranges()[0].first}});
      }
      set = set | item;
    }
    ++at_;
    if (ignore_case_) set = both_cases(set);
    return negated ? ~set : set;
  }

  CharacterSet member() {
    if (take("\\")) return escape(true);
    return one(character());
  }

  // Adds the other case of ASCII letters, and the two characters beyond ASCII that fold to an ASCII letter.
  static CharacterSet both_cases(const CharacterSet& set) {
    std::vector<CharacterSet::Range> ranges = set.ranges();
    const std::size_t count = ranges.size();
    for (std::size_t i = 0; i < count; ++i) {
      // Accepts complements of ASCII sets. Letters beyond ASCII would need their own case folding.
      if (ranges[i].last >= 0x80 && (ranges[i].first > 0x80 || ranges[i].last != 0x10FFFF)) throw NotOfTheSubset();
      for (char32_t c = ranges[i].first; c <= std::min<char32_t>(ranges[i].last, 'z'); ++c) {
        const char32_t lower = c | 32;
        if (lower < 'a' || lower > 'z' || c >= 0x80) continue;
        ranges.push_back({lower, lower});
        ranges.push_back({lower - 32, lower - 32});
        if (lower == 's') ranges.push_back({0x17F, 0x17F});
        if (lower == 'k') ranges.push_back({0x212A, 0x212A});
      }
    }
    return CharacterSet(std::move(ranges));
  }

  std::string_view pattern_;
  std::size_t at_ = 0;
  int depth_ = 0;
  bool ignore_case_ = false;
};

}  // namespace

std::optional<PatternNode> parse_pattern(std::string_view pattern) {
  try {
    return Parser(pattern).run();
  } catch (const NotOfTheSubset&) {
    return std::nullopt;
  }
}

}  // namespace hawser::text
