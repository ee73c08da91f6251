// Regular expressions of tokenizer.json files. They are written for Oniguruma, which the `tokenizers` library uses;
// here PCRE2 runs them (UTF-8, Unicode properties, JIT). Where the two read a construct differently it is rewritten
// (\s, \w: what they match beyond ASCII differs) or rejected; see translate_oniguruma.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace hawser::data {

// The pattern in PCRE2's words; with `recent`, general categories also list the characters of recent_unicode.h (not
// under \P inside [ ], where PCRE2 offers no way). Throws std::invalid_argument, naming a construct without an equal.
std::string translate_oniguruma(std::string_view pattern, bool recent);

struct RegexMatch {
  std::size_t begin, end;
};

// A compiled pattern; immutable, shared by threads. Each thread brings its own Scratch.
class Regex {
 public:
  // Match data and JIT stack. One serves any number of patterns, one find() at a time.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    // Says which form of the patterns fits what follows; call it once for a text and all its pieces.
    void look_at(std::string_view text);

   private:
    friend class Regex;
    struct Implementation;
    std::unique_ptr<Implementation> x_;
  };

  // `pattern` in Oniguruma's words; throws std::invalid_argument with the reason.
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // First match at or after `from` in `subject`, which must be valid UTF-8, cut at whole characters. Lookaround sees
  // all of `subject`. nullopt: no match, or matching gave up (only patterns with runaway backtracking do).
  std::optional<RegexMatch> find(std::string_view subject, std::size_t from, Scratch& scratch) const;

 private:
  struct Implementation;
  std::unique_ptr<Implementation> x_;
};

}  // namespace hawser::data
