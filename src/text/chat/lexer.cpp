#include "text/chat/lexer.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/ascii.h"
#include "base/cat.h"
#include "base/utf8.h"
#include "text/chat/texts.h"
#include "text/chat/value.h"

namespace hawser::text::chat {
namespace {

class Lexer {
 public:
  // `source` must outlive the lexer and have normalized line ends.
  explicit Lexer(std::string_view source) : source_(source) {
    // Jinja drops one line end at the end of the template.
    if (source_.ends_with('\n')) source_.remove_suffix(1);
  }

  std::vector<Token> run() {
    while (at_ < source_.size()) text();
    put(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw TemplateError(what, line_); }

  void put(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void advance(std::size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(to), '\n'));
    at_ = to;
  }

  // Without white space as Python defines it.
  static std::string_view trimmed(std::string_view text, bool left, bool right) {
    const std::size_t kept_left = left ? strip(Text{std::string(text), {}}, nullptr, true, false).bytes.size() : 0;
    if (left) text.remove_prefix(text.size() - kept_left);
    if (right) text = text.substr(0, strip(Text{std::string(text), {}}, nullptr, false, true).bytes.size());
    return text;
  }

  // Reads the text up to the next tag, then the tag.
  void text() {
    std::size_t tag = at_;
    while (true) {
      tag = source_.find('{', tag);
      if (tag == source_.npos || tag + 1 >= source_.size()) {
        tag = source_.npos;
        break;
      }
      const char kind = source_[tag + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
      ++tag;
    }
    std::string_view out = source_.substr(at_, tag == source_.npos ? source_.npos : tag - at_);
    if (trim_newline_ && out.starts_with('\n')) out.remove_prefix(1);
    if (strip_left_) out = trimmed(out, true, false);
    trim_newline_ = strip_left_ = false;
    if (tag == source_.npos) {
      if (!out.empty()) put(TokenKind::text, std::string(out));
      return advance(source_.size());
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (sign == '-') {
      out = trimmed(out, false, true);
    } else if (sign != '+' && kind != '{') {
      // lstrip_blocks: drops white space between the start of the line and the block.
      const std::size_t end = std::max(trimmed(out, false, true).size(), out.rfind('\n') + 1);
      const bool line_start = end > 0 ? out[end - 1] == '\n' : out.data() == source_.data() || after_newline(out);
      if (line_start) out = out.substr(0, end);
    }
    if (!out.empty()) put(TokenKind::text, std::string(out));
    advance(tag + 2);
    if (sign == '-' || sign == '+') ++at_;
    if (kind == '#') return comment();
    put(kind == '{' ? TokenKind::begin_output : TokenKind::begin_block, "");
    inside(kind == '{' ? "}}" : "%}", kind == '{');
  }

  // Whether a line end, already trimmed, precedes `out`.
  bool after_newline(std::string_view out) const { return out.data() > source_.data() && out.data()[-1] == '\n'; }

  void comment() {
    const std::size_t end = source_.find("#}", at_);
    if (end == source_.npos) fail("unterminated comment");
    const bool strip = end > at_ && source_[end - 1] == '-';
    advance(end + 2);
    after(strip, source_[end - 1] == '+', false);
  }

  void after(bool strip, bool keep, bool output) {
    strip_left_ = strip;
    trim_newline_ = !strip && !keep && !output;
  }

  void inside(std::string_view end, bool output) {
    std::vector<char> open;
    while (true) {
      while (at_ < source_.size() && is_space(source_[at_])) advance(at_ + 1);
      if (at_ >= source_.size()) fail("unterminated tag");
      const std::string_view rest = source_.substr(at_);
      if (open.empty()) {
        const bool sign = rest[0] == '-' || rest[0] == '+';
        if (rest.substr(sign ? 1 : 0).starts_with(end)) {
          put(output ? TokenKind::end_output : TokenKind::end_block, "");
          advance(at_ + end.size() + (sign ? 1 : 0));
          return after(sign && rest[0] == '-', sign && rest[0] == '+', output);
        }
      }
      const char c = rest[0];
      if (c == '"' || c == '\'') {
        string(c);
      } else if (std::isdigit(static_cast<unsigned char>(c))) {
        number();
      } else if (std::isalpha(static_cast<unsigned char>(c)) || c == '_') {
        std::size_t size = 1;
        while (size < rest.size() && (std::isalnum(static_cast<unsigned char>(rest[size])) || rest[size] == '_'))
          ++size;
        put(TokenKind::name, std::string(rest.substr(0, size)));
        at_ += size;
      } else {
        symbol(rest, open);
      }
    }
  }

  void symbol(std::string_view rest, std::vector<char>& open) {
    static constexpr std::array<std::string_view, 7> kLong = {"==", "!=", "<=", ">=", "//", "**", "::"};
    for (const std::string_view two : kLong) {
      if (rest.starts_with(two) && two != "::") {
        put(TokenKind::symbol, std::string(two));
        at_ += 2;
        return;
      }
    }
    const char c = rest[0];
    if (std::string_view("+-*/%~|.,:()[]{}<>=").find(c) == std::string_view::npos) {
      fail(cat("unexpected character '", c, "'"));
    }
    if (c == '(' || c == '[' || c == '{') open.push_back(c);
    if (c == ')' || c == ']' || c == '}') {
      const char wanted = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (open.empty() || open.back() != wanted) fail(cat("unexpected '", c, "'"));
      open.pop_back();
    }
    put(TokenKind::symbol, std::string(1, c));
    ++at_;
  }

  void number() {
    std::size_t size = 0;
    bool real = false;
    const std::string_view rest = source_.substr(at_);
    const auto digit = [&](std::size_t i) {
      return i < rest.size() && std::isdigit(static_cast<unsigned char>(rest[i]));
    };
    std::string text;
    while (digit(size) || (size < rest.size() && rest[size] == '_' && digit(size + 1))) {
      if (rest[size] != '_') text += rest[size];
      ++size;
    }
    if (size < rest.size() && rest[size] == '.' && digit(size + 1)) {
      real = true;
      text += rest[size++];
      while (digit(size)) text += rest[size++];
    }
    if (size < rest.size() && (rest[size] == 'e' || rest[size] == 'E') &&
        (digit(size + 1) ||
         (size + 1 < rest.size() && (rest[size + 1] == '-' || rest[size + 1] == '+') && digit(size + 2)))) {
      real = true;
      text += rest[size++];
      text += rest[size++];
      while (digit(size)) text += rest[size++];
    }
    put(real ? TokenKind::real : TokenKind::integer, text);
    at_ += size;
  }

  void string(char quote) {
    std::string value;
    std::size_t i = at_ + 1;
    for (; i < source_.size() && source_[i] != quote; ++i) {
      if (source_[i] != '\\' || i + 1 >= source_.size()) {
        value += source_[i];
        continue;
      }
      i = escape(i + 1, value);
    }
    if (i >= source_.size()) fail("unterminated string");
    put(TokenKind::string, std::move(value));
    advance(i + 1);
  }

  // Reads one of Python's escapes; returns the index of its last character.
  std::size_t escape(std::size_t i, std::string& value) {
    const char c = source_[i];
    static constexpr std::string_view kNames = "nrtbfva\\'\"", kValues = "\n\r\t\b\f\v\a\\'\"";
    if (const std::size_t found = kNames.find(c); found != kNames.npos) {
      value += kValues[found];
      return i;
    }
    if (c == '\n') return i;
    if (c == 'N' || static_cast<unsigned char>(c) >= 0x80) fail("invalid escape in a string");
    const auto octal = [&](std::size_t k) { return k < source_.size() && source_[k] >= '0' && source_[k] <= '7'; };
    if (octal(i)) {
      char32_t code = 0;
      const std::size_t end = i + 3;
      for (; i < end && octal(i); ++i) code = code * 8 + static_cast<char32_t>(source_[i] - '0');
      append_utf8(code, value);
      return i - 1;
    }
    const int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    char32_t code = 0;
    for (int k = 1; k <= digits; ++k) {
      const char digit =
          i + static_cast<std::size_t>(k) < source_.size() ? source_[i + static_cast<std::size_t>(k)] : '\0';
      if (!std::isxdigit(static_cast<unsigned char>(digit))) fail("invalid escape in a string");
      code = code * 16 + static_cast<char32_t>(std::isdigit(static_cast<unsigned char>(digit))
                                                   ? digit - '0'
                                                   : std::tolower(static_cast<unsigned char>(digit)) - 'a' + 10);
    }
    if (digits == 0) {
      value += '\\';
      value += c;
      return i;
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) fail("escape is not a valid character");
    append_utf8(code, value);
    return i + static_cast<std::size_t>(digits);
  }

  std::string_view source_;
  std::size_t at_ = 0;
  int line_ = 1;
  bool trim_newline_ = false, strip_left_ = false;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  std::string text;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && source.substr(i + 1).starts_with('\n')) continue;
    text += source[i] == '\r' ? '\n' : source[i];
  }
  return Lexer(text).run();
}

}  // namespace hawser::text::chat
