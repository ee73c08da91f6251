#include "text/tokenizers/pattern.h"

#include <cctype>

#include "base/utf8.h"
#include "text/tokenizers/pattern_check.h"

namespace hawser::text {

Pattern::Pattern(std::string_view pattern) {
  check_pattern(pattern);
  scanner_ = Scanner::compile(pattern);
  if (!scanner_) regex_.emplace(pattern);
}

std::optional<RegexMatch> Pattern::find(std::string_view subject, std::size_t from, Regex::Scratch& scratch) const {
  if (regex_) return regex_->find(subject, from, scratch);
  const char* text = subject.data();
  for (std::size_t at = from; at <= subject.size();) {
    if (!scanner_->matches_empty()) {
      while (at < subject.size() && !scanner_->can_start(static_cast<unsigned char>(text[at]))) ++at;
      if (at == subject.size()) return std::nullopt;
    }
    // No match starts inside a character.
    if (at < subject.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) {
      ++at;
      continue;
    }
    const std::size_t end = scanner_->match(text, at, subject.size());
    if (end != Scanner::kNone) return RegexMatch{at, end};
    ++at;
  }
  return std::nullopt;
}

std::string literal_pattern(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && std::ispunct(static_cast<unsigned char>(c))) out += '\\';
    out += c;
  }
  return out;
}

}  // namespace hawser::text
