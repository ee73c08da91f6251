#include "text/tokenizers/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <map>
#include <stdexcept>

#include "base/cat.h"
#include "base/error.h"
#include "base/utf8.h"
#include "text/tokenizers/pattern_check.h"
#include "text/tokenizers/recent_unicode.h"
#include "text/tokenizers/unicode.h"

namespace hawser::text {
namespace {

// Members of Oniguruma's \s and \w, for use in a class. PCRE2's \s also matches U+180E; its \w omits marks and
// connectors and has all of \p{N}.
constexpr std::string_view kSpace =
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
// Numbers of Oniguruma's \w that it does not have inside [ ].
constexpr std::string_view kWordNumbers = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

// Properties, other than general categories and scripts, that recent versions of Unicode did not change.
constexpr std::string_view kSameProperties[] = {
    "Any", "ASCII", "White_Space", "Space", "Hex_Digit", "ASCII_Hex_Digit", "Quotation_Mark", "Extended_Pictographic"};

constexpr std::size_t kShown = 60;  // characters of a pattern shown before the position of an error

// A compiled form of a pattern.
struct Code {
  pcre2_code* code = nullptr;
  bool jit = false;

  explicit Code(const std::string& pattern) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_compile_context* context = pcre2_compile_context_create(nullptr);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    // MULTILINE: ^ and $ of Oniguruma always match at line boundaries.
    code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context);
    pcre2_compile_context_free(context);
    if (!code) {
      unsigned char message[256];
      pcre2_get_error_message(error, message, sizeof message);
      throw std::invalid_argument(
          cat("regular expression does not compile: ", reinterpret_cast<const char*>(message), " after ",
              offset > kShown ? "..." : "",
              std::string_view(pattern).substr(0, offset).substr(offset > kShown ? offset - kShown : 0)));
    }
    jit = pcre2_jit_compile(code, PCRE2_JIT_COMPLETE) == 0;
  }
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() { pcre2_code_free(code); }
};

// Whether PCRE2 knows the property, such as \p{sc:Greek}.
bool is_property(const std::string& property) {
  try {
    const Code known(property);
    return true;
  } catch (const std::invalid_argument&) {
    return false;
  }
}

bool has_property(char32_t c, const std::string& property) {
  const Code code(property);
  std::string text;
  append_utf8(c, text);
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  const int found = pcre2_match(code.code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, data, nullptr);
  pcre2_match_data_free(data);
  return found > 0;
}

// Appends a range of class members.
void append_range(char32_t first, char32_t last, std::string& out) {
  char range[32];
  std::snprintf(range, sizeof range, "\\x{%x}-\\x{%x}", static_cast<unsigned>(first), static_cast<unsigned>(last));
  out += range;
}

bool in_category(std::string_view category, std::string_view name) {
  return category.substr(0, name.size()) == name;
}

// Class members: the recent characters whose general category starts with one of `categories`.
std::string recent_members(std::initializer_list<std::string_view> categories) {
  std::string out;
  for (const RecentRange& range : recent_ranges()) {
    const auto has = [&](std::string_view name) { return in_category(range.category, name); };
    if (std::any_of(categories.begin(), categories.end(), has)) append_range(range.first, range.last, out);
  }
  return out;
}

// Class members: the recent characters of a script, given as \p{sc:Greek}.
std::string recent_members_of_script(const std::string& property) {
  std::string out;
  std::map<char32_t, bool> known;
  for (const RecentRange& range : recent_ranges()) {
    if (range.older == 0) continue;
    const auto [at, fresh] = known.try_emplace(range.older, false);
    if (fresh) at->second = has_property(range.older, property);
    if (at->second) append_range(range.first, range.last, out);
  }
  return out;
}

// Class members: a set without surrogates, which PCRE2 does not accept.
std::string members(const CharacterSet& set) {
  std::string out;
  for (const CharacterSet::Range& range : set.ranges()) {
    const auto surrogate = [](char32_t c) { return c >= 0xD800 && c <= 0xDFFF; };
    const char32_t first = surrogate(range.first) ? 0xE000 : range.first;
    const char32_t last = surrogate(range.last) ? 0xD7FF : range.last;
    if (first <= last) append_range(first, last, out);
  }
  return out;
}

// Translates a pattern in one pass, with one method per kind of construct.
class Translator {
 public:
  Translator(std::string_view pattern, bool recent) : pattern_(pattern), recent_(recent) {}

  std::string run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '\\') {
        escape();
      } else if (c == '[') {
        open_class();
      } else if (in_class_) {
        if (c == ']') in_class_ = false;
        if (c == '&' && peek(1) == '&') throw unsupported_construct("&& inside [ ]");
        copy();
      } else {
        if (c == '(' && peek(1) == '?') check_options();
        if (c == '{' && peek(1) == ',' && std::isdigit(static_cast<unsigned char>(peek(2)))) {
          out_ += "{0";  // {,n} is literal in PCRE2
          ++at_;
          continue;
        }
        if (c == '}' && peek(1) == '+')
          throw unsupported_construct("{n,m}+");  // greedy in Oniguruma, possessive in PCRE2
        copy();
      }
    }
    return out_;
  }

 private:
  char peek(std::size_t ahead) const { return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0'; }
  void copy() { out_ += pattern_[at_++]; }

  // Writes a set: as members inside a class, else as a class.
  void set(const std::string& members, bool negated, std::string_view construct) {
    if (in_class_ && negated) throw unsupported_construct(cat(construct, " inside [ ]"));
    out_ += in_class_ ? members : cat(negated ? "[^" : "[", members, "]");
  }

  void escape() {
    const char kind = peek(1);
    const std::string construct = {'\\', kind};
    if (kind == 's' || kind == 'S') {
      set(std::string(kSpace), kind == 'S', construct);
    } else if (kind == 'w' || kind == 'W') {
      set(cat(kWord, in_class_ ? "" : kWordNumbers, recent_ ? recent_members({"L", "M", "Nd", "Pc"}) : ""), kind == 'W',
          construct);
    } else if (recent_ && (kind == 'd' || kind == 'D')) {
      set("\\d" + recent_members({"Nd"}), kind == 'D', construct);
    } else if (kind == 'p' || kind == 'P') {
      property(kind == 'P');
      return;
    } else if (kind != '\0' && (std::string_view("dDrntfaeAzxX").find(kind) != std::string_view::npos ||
                                (static_cast<unsigned char>(kind) < 0x80 && std::ispunct(kind)))) {
      out_ += construct;
    } else {
      throw unsupported_construct(construct);
    }
    at_ += 2;
  }

  // \p{Name}, \P{Name}; \p{^Name} is rejected. PCRE2 reads the name of a script as Script_Extensions, Oniguruma as
  // Script.
  void property(bool negated) {
    const std::size_t close = pattern_.find('}', at_);
    if (peek(2) != '{' || peek(3) == '^' || close == std::string_view::npos)
      throw unsupported_construct("\\p without {Name}");
    const std::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    const std::string_view whole = pattern_.substr(at_, close + 1 - at_);
    at_ = close + 1;
    std::string positive = cat("\\p{", name, "}"), more;
    if (const auto category = characters_of_category(name)) {
      if (!recent_) {
        out_ += whole;
        return;
      }
      // Recent characters are unassigned in PCRE2.
      if (name[0] == 'C' || (negated && in_class_)) {
        out_ += cat(in_class_ ? "" : "[", members(negated ? ~*category : *category), in_class_ ? "" : "]");
        return;
      }
      more = recent_members({name});
    } else if (is_property(cat("\\p{sc:", name, "}"))) {
      positive = cat("\\p{sc:", name, "}");
      if (has_property(0x378, positive)) throw unsupported_construct(whole);  // unassigned: the script Unknown
      if (recent_) more = recent_members_of_script(positive);
    } else if (std::find(std::begin(kSameProperties), std::end(kSameProperties), name) == std::end(kSameProperties)) {
      throw unsupported_construct(whole);
    }
    if (!more.empty()) {
      set(positive + more, negated, whole);
    } else {
      out_ += negated ? cat("\\P", positive.substr(2)) : positive;
    }
  }

  void open_class() {
    if (in_class_) throw unsupported_construct("[ inside [ ]");
    in_class_ = true;
    copy();
    if (peek(0) == '^') copy();
    // A ] in first position is a literal.
    if (peek(0) == ']') {
      out_ += "\\]";
      ++at_;
    }
  }

  // i is the only inline option with the same meaning in both.
  void check_options() const {
    for (std::size_t i = 2; std::isalpha(static_cast<unsigned char>(peek(i))) || peek(i) == '-'; ++i) {
      if (peek(i) != 'i' && peek(i) != '-') throw unsupported_construct(pattern_.substr(at_, i + 1));
    }
  }

  std::string_view pattern_;
  bool recent_;
  bool in_class_ = false;
  std::size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string translate_oniguruma(std::string_view pattern, bool recent) {
  return Translator(pattern, recent).run();
}

struct Regex::Implementation {
  Code common, recent;
  explicit Implementation(std::string_view pattern)
      : common(translate_oniguruma(pattern, false)), recent(translate_oniguruma(pattern, true)) {}
};

struct Regex::Scratch::Implementation {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(64 << 10, 16 << 20, nullptr);
  bool recent = false;
  Implementation() {
    HAWSER_CHECK(data && context && stack, "PCRE2 is out of memory");
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~Implementation() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

Regex::Scratch::Scratch() : x_(std::make_unique<Implementation>()) {}
Regex::Scratch::~Scratch() = default;
void Regex::Scratch::look_at(std::string_view text) {
  x_->recent = has_recent_characters(text);
}

Regex::Regex(std::string_view pattern) : x_(std::make_unique<Implementation>(pattern)) {}
Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::optional<RegexMatch> Regex::find(std::string_view subject, std::size_t from, Scratch& scratch) const {
  Scratch::Implementation& s = *scratch.x_;
  const Code& code = s.recent ? x_->recent : x_->common;
  const auto* text = reinterpret_cast<PCRE2_SPTR>(subject.data());
  int found = PCRE2_ERROR_JIT_STACKLIMIT;
  if (code.jit) found = pcre2_jit_match(code.code, text, subject.size(), from, 0, s.data, s.context);
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
    found = pcre2_match(code.code, text, subject.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, s.data, s.context);
  }
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0) {
    throw UserError(Problem{.what = cat("regular expression not supported: PCRE2 stops with error ", found),
                            .hint = "another tokenizer, or shorter texts"});
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(s.data);
  return RegexMatch{ends[0], ends[1]};
}

}  // namespace hawser::text
