// `Regex`: runs the regular expressions of tokenizer.json files in PCRE2 (UTF-8, Unicode properties, JIT). They are
// written for Oniguruma, which the `tokenizers` library uses. Constructs with another meaning in PCRE2 are rewritten
// (\s and \w match other characters beyond ASCII) or rejected; see translate_oniguruma and pattern_check.h.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace hawser::text {

// Translates a pattern to PCRE2 syntax. With `recent`, general categories and scripts also list the characters of
// recent_unicode.h. Throws std::invalid_argument, which names the construct, for one without an equivalent.
std::string translate_oniguruma(std::string_view pattern, bool recent);

struct RegexMatch {
  std::size_t begin, end;
};

// A compiled pattern. Immutable and thread-safe; each thread uses its own Scratch.
class Regex {
 public:
  // Match data and JIT stack. Serves any number of patterns, one find() at a time.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    // Selects the form of the patterns for `text`. Call it once before find() on the text and its pieces.
    void look_at(std::string_view text);

   private:
    friend class Regex;
    struct Implementation;
    std::unique_ptr<Implementation> x_;
  };

  // `pattern`: in Oniguruma syntax. Throws std::invalid_argument with the reason.
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // First match at or after `from` in `subject`, which must be valid UTF-8 and cut between characters. Lookaround sees
  // all of `subject`. Throws UserError if PCRE2 stops at a limit (excessive backtracking).
  std::optional<RegexMatch> find(std::string_view subject, std::size_t from, Scratch& scratch) const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> x_;
};

}  // namespace hawser::text
