// Cuts text into the words that a model works on, by the steps of a tokenizer.json's `pre_tokenizer`.
//
// Each piece is a text of its own to the next step: lookaround does not see its neighbours.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/function_ref.h"
#include "data/tokenizers/pattern.h"
#include "data/tokenizers/unicode.h"

namespace hawser::data {

// What becomes of the text that a pattern matches.
enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

// The pattern that ByteLevel brings with `use_regex`.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// U+2581, which stands for a space in SentencePiece's vocabularies.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

class PreTokenizer {
 public:
  using Emit = FunctionRef<void(std::string_view)>;

  // Matches of a pattern; `invert`: what lies between matches counts as the match.
  struct Split {
    Pattern pattern;
    SplitBehavior behavior;
    bool invert;
  };
  // Characters of a kind, each a match of its own.
  struct SplitCharacters {
    bool (*matches)(char32_t c, char32_t delimiter);
    char32_t delimiter;
    SplitBehavior behavior;
  };
  // White space is removed, punctuation set apart.
  struct Bert {};
  // A space before a piece that starts with none.
  struct PrefixSpace {};
  // Each byte as its character of the byte-level alphabet: only where steps follow that see it so.
  struct ByteLevel {};
  // Spaces become the mark, a mark comes first, and with `split` each mark starts a piece.
  struct Metaspace {
    enum class Prepend { never, first_only, always };
    std::string mark;
    Prepend prepend;
    bool split;
  };
  // Cuts before each run of kSpaceMark. For models whose tokens never cross such a border (and which therefore give the
  // same ids for the pieces as for the whole), so that the pieces can be remembered.
  struct CutAtSpaceMarks {};
  using Step = std::variant<Split, SplitCharacters, Bert, PrefixSpace, ByteLevel, Metaspace, CutAtSpaceMarks>;

  // One a thread; grows to what the steps need.
  struct Scratch {
    Regex::Scratch regex;
    std::vector<std::string> rewritten;  // one a step: the piece with its space, or in other characters
  };

  void add(Step step);
  bool empty() const { return steps_.empty(); }

  // Calls `emit` with each piece, in order, none empty. `text` is valid UTF-8; `first`: it begins the document.
  void split(std::string_view text, bool first, Scratch& scratch, Emit emit) const;

  // The step's automaton, where there is one step that cuts all of a text into matches, each of them a piece; or
  // nullptr. A short cut around split().
  const Scanner* only_scanner() const;
  bool only_cuts_at_space_marks() const {
    return steps_.size() == 1 && std::holds_alternative<CutAtSpaceMarks>(steps_[0]);
  }
  // Whether PCRE2 runs some pattern: then Scratch::regex must be told of the text.
  bool uses_regex() const { return uses_regex_; }

 private:
  void run(std::size_t step, std::string_view text, bool first, Scratch& scratch, Emit emit) const;

  std::vector<Step> steps_;
  bool uses_regex_ = false;
};

// Where the piece of `text` that starts at `at` ends, for CutAtSpaceMarks.
inline std::size_t end_of_space_mark_piece(std::string_view text, std::size_t at) {
  const auto mark_at = [&](std::size_t i) { return text.substr(i, kSpaceMark.size()) == kSpaceMark; };
  while (mark_at(at)) at += kSpaceMark.size();
  const std::size_t end = text.find(kSpaceMark, at);
  return end == std::string_view::npos ? text.size() : end;
}

}  // namespace hawser::data
