#include "data/tokenizers/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>
#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <stdexcept>

#include "base/cat.h"
#include "base/error.h"
#include "data/tokenizers/recent_unicode.h"

namespace hawser::data {
namespace {

// Members of Oniguruma's \s and \w, for use in a class. PCRE2's \s also matches U+180E; its \w omits marks and
// connectors.
constexpr std::string_view kSpace =
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";
constexpr std::string_view kWord = "\\p{Alphabetic}\\p{M}\\p{N}\\p{Pc}";

std::invalid_argument rejected(std::string_view construct) {
  return std::invalid_argument(cat("regular expression construct not supported: ", construct));
}

// Class members: the recent characters whose general category starts with one of `categories`.
std::string recent_members(std::initializer_list<std::string_view> categories) {
  std::ostringstream out;
  out << std::hex;
  for (const RecentRange& range : recent_ranges()) {
    for (const std::string_view category : categories) {
      if (std::string_view(range.category).substr(0, category.size()) != category) continue;
      out << "\\x{" << static_cast<std::uint32_t>(range.first) << "}-\\x{" << static_cast<std::uint32_t>(range.last)
          << '}';
      break;
    }
  }
  return out.str();
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
        if (c == '&' && peek(1) == '&') throw rejected("&& inside [ ]");
        copy();
      } else {
        if (c == '(' && peek(1) == '?') check_options();
        if (c == '}' && peek(1) == '+') throw rejected("{n,m}+");  // greedy in Oniguruma, possessive in PCRE2
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
    if (in_class_ && negated) throw rejected(cat(construct, " inside [ ]"));
    out_ += in_class_ ? members : cat(negated ? "[^" : "[", members, "]");
  }

  void escape() {
    const char kind = peek(1);
    const std::string construct = {'\\', kind};
    if (kind == 's' || kind == 'S') {
      set(std::string(kSpace), kind == 'S', construct);
    } else if (kind == 'w' || kind == 'W') {
      set(cat(kWord, recent_ ? recent_members({"L", "M", "N", "Pc"}) : ""), kind == 'W', construct);
    } else if (recent_ && (kind == 'd' || kind == 'D')) {
      set("\\d" + recent_members({"Nd"}), kind == 'D', construct);
    } else if (kind == 'p' || kind == 'P') {
      property(kind == 'P');
      return;
    } else if (kind != '\0' && (std::string_view("dDrntfaeAzxX").find(kind) != std::string_view::npos ||
                                (static_cast<unsigned char>(kind) < 0x80 && std::ispunct(kind)))) {
      out_ += construct;
    } else {
      throw rejected(construct);
    }
    at_ += 2;
  }

  // \p{Name}, \P{Name}; \p{^Name} is rejected.
  void property(bool negated) {
    const std::size_t close = pattern_.find('}', at_);
    if (peek(2) != '{' || peek(3) == '^' || close == std::string_view::npos) throw rejected("\\p without {Name}");
    const std::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    const std::string_view whole = pattern_.substr(at_, close + 1 - at_);
    at_ = close + 1;
    const bool category =
        name.size() <= 2 && !name.empty() && std::string_view("LMNPS").find(name[0]) != std::string_view::npos;
    const std::string more = recent_ && category ? recent_members({name}) : "";
    if (more.empty() || (in_class_ && negated)) {
      out_ += whole;
    } else {
      set(cat("\\p{", name, "}", more), negated, whole);
    }
  }

  void open_class() {
    if (in_class_) throw rejected("[ inside [ ]");
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
      if (peek(i) != 'i' && peek(i) != '-') throw rejected(pattern_.substr(at_, i + 1));
    }
  }

  std::string_view pattern_;
  bool recent_;
  bool in_class_ = false;
  std::size_t at_ = 0;
  std::string out_;
};

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
  if (found < 0) return std::nullopt;
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(s.data);
  return RegexMatch{ends[0], ends[1]};
}

}  // namespace hawser::data
