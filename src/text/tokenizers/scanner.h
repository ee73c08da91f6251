// `Scanner`: a pattern of a tokenizer.json as a deterministic automaton: one table lookup per character, for any number
// of alternatives. Finds the same match as a backtracking engine: the leftmost, and of several at one position the one
// that the order of alternatives and greedy quantifiers prefer.
//
// Supported subset: characters, classes, \p{..}, \s \d \w, groups, (?i:..) over ASCII letters, | ? * + {n,m}, and
// lookahead of one character, (?!\S). `Pattern` runs all others (lazy or possessive quantifiers, lookbehind, back
// references, anchors) as a Regex.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/tokenizers/common_run.h"

namespace hawser::text {

class Scanner {
 public:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  // nullopt: outside the subset, or too many states. Never throws.
  static std::optional<Scanner> compile(std::string_view pattern);

  // End of the match that starts at `at` in text[0, size), which is valid UTF-8; kNone if there is none.
  std::size_t match(const char* text, std::size_t at, std::size_t size) const {
    if (run_.count > 0 && at + CommonRun::kBlock <= size) {
      if (const std::size_t length = run_.find(text + at)) return at + length;
    }
    std::size_t end = kNone;
    const std::uint16_t* row = table_.data() + start_;
    for (;;) {
      if (at >= size) return row[end_class_] & kMatch ? size : end;
      const auto lead = static_cast<unsigned char>(text[at]);
      std::size_t width = 1;
      std::uint8_t kind = ascii_[lead];
      if (lead >= 0x80) kind = wide(text + at, lead, width);
      const std::uint16_t next = row[kind];
      if (next & kMatch) end = at;
      if (next & kDead) return end;
      at += width;
      const std::size_t state = next & kState;
      row = table_.data() + state * classes_;
      const std::uint8_t* stay = stay_.data() + state * 256;
      // Skips ASCII characters that lead back to this state. flags == 2: a match ends before each of them.
      if (const std::uint8_t flags = stay[255]) {
        const std::size_t from = at;
        while (at < size && stay[static_cast<unsigned char>(text[at])]) ++at;
        if (at > from && flags == 2) end = at - 1;  // before the last of them
      }
    }
  }

  // False: no match starts with this byte. True: one may.
  bool can_start(unsigned char byte) const { return starts_[byte]; }
  // Whether a match starts at every character: then matches follow each other without gaps.
  bool total() const { return total_; }
  // Whether the empty text can match.
  bool matches_empty() const { return matches_empty_; }

 private:
  static constexpr std::uint16_t kMatch = 0x8000, kDead = 0x4000, kState = 0x3FFF;
  friend class ScannerBuilder;

  std::uint8_t wide(const char* text, unsigned char lead, std::size_t& width) const {
    const auto low = [&](int i) { return static_cast<char32_t>(text[i]) & 0x3F; };
    char32_t c;
    if (lead < 0xE0) {
      width = 2;
      c = (lead & 0x1Fu) << 6 | low(1);
    } else if (lead < 0xF0) {
      width = 3;
      c = (lead & 0x0Fu) << 12 | low(1) << 6 | low(2);
    } else {
      width = 4;
      c = (lead & 0x07u) << 18 | low(1) << 12 | low(2) << 6 | low(3);
    }
    return pages_[page_[c >> 8]][c & 255];
  }

  std::array<std::uint8_t, 256> ascii_{};
  std::vector<std::uint16_t> page_;                   // character >> 8 -> index of its page
  std::vector<std::array<std::uint8_t, 256>> pages_;  // class of each character of a page
  std::size_t classes_ = 0;                           // number of classes; the last is the end of the text
  std::size_t end_class_ = 0;
  std::size_t start_ = 0;             // index of the first state's row
  std::vector<std::uint16_t> table_;  // state x class -> next state; kMatch: a match ends before this character
  std::vector<std::uint8_t> stay_;  // state x byte -> 1: leads back; [255]: 0 if no byte does, else 1, or 2 with kMatch
  CommonRun run_;
  std::array<bool, 256> starts_{};
  bool total_ = false, matches_empty_ = false;
};

}  // namespace hawser::text
