// `Pattern`: a regular expression of a tokenizer.json. Runs as a Scanner if it can, else in PCRE2, with equal results.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "text/tokenizers/regex.h"
#include "text/tokenizers/scanner.h"

namespace hawser::text {

class Pattern {
 public:
  // Throws std::invalid_argument with the reason.
  explicit Pattern(std::string_view pattern);

  // Same as Regex::find.
  std::optional<RegexMatch> find(std::string_view subject, std::size_t from, Regex::Scratch& scratch) const;

  // Null if PCRE2 runs the pattern.
  const Scanner* scanner() const { return scanner_ ? &*scanner_ : nullptr; }

 private:
  std::optional<Scanner> scanner_;
  std::optional<Regex> regex_;
};

// A pattern that matches `text` and nothing else.
std::string literal_pattern(std::string_view text);

}  // namespace hawser::text
