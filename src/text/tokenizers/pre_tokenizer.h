// `PreTokenizer`: splits text into the words that a model encodes, by the steps of a tokenizer.json's `pre_tokenizer`.
//
// The next step sees each piece as a separate text: lookaround does not see neighbouring pieces.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/function_ref.h"
#include "text/tokenizers/pattern.h"
#include "text/tokenizers/unicode.h"

namespace hawser::text {

// What happens to the text that a pattern matches.
enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

// Pattern that ByteLevel splits by if `use_regex` is set.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// U+2581, which represents a space in SentencePiece vocabularies.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";

class PreTokenizer {
 public:
  using Emit = FunctionRef<void(std::string_view)>;

  // Splits by a pattern. `invert`: the text between matches counts as matches.
  struct Split {
    Pattern pattern;
    SplitBehavior behavior;
    bool invert;
  };
  // Splits by characters for which `matches` is true; each is a match.
  struct SplitCharacters {
    bool (*matches)(char32_t c, char32_t delimiter);
    char32_t delimiter;
    SplitBehavior behavior;
  };
  // Removes white space, isolates punctuation characters.
  struct Bert {};
  // Prepends a space to a piece that does not start with one.
  struct PrefixSpace {};
  // Replaces each byte by its character of the byte-level alphabet. Present only if a later step or the model uses the
  // alphabet.
  struct ByteLevel {};
  // Replaces spaces by the mark and prepends a mark. With `split`, each mark starts a piece.
  struct Metaspace {
    enum class Prepend { never, first_only, always };
    std::string mark;
    Prepend prepend;
    bool split;
  };
  // Cuts before each run of kSpaceMark. For models whose tokens never cross such a boundary: the ids stay the same, and
  // the pieces can be cached.
  struct CutAtSpaceMarks {};
  using Step = std::variant<Split, SplitCharacters, Bert, PrefixSpace, ByteLevel, Metaspace, CutAtSpaceMarks>;

  // One per thread; grows to what the steps need.
  struct Scratch {
    Regex::Scratch regex;
    std::vector<std::string> rewritten;  // per step: the piece with its prefix or in other characters
  };

  void add(Step step);
  bool empty() const { return steps_.empty(); }

  // Calls `emit` with each piece in order; none is empty. `text` is valid UTF-8. `first`: number of its leading
  // characters that come from the first character of the document (Normalizer::run).
  void split(std::string_view text, int first, Scratch& scratch, Emit emit) const;

  // Fast path around split(): the automaton of the only step, if it splits all of a text into matches and each match is
  // a piece; else null.
  const Scanner* only_scanner() const;
  bool only_cuts_at_space_marks() const {
    return steps_.size() == 1 && std::holds_alternative<CutAtSpaceMarks>(steps_[0]);
  }
  // Whether PCRE2 runs a pattern: the caller must then call look_at(text) of Scratch::regex before split().
  bool uses_regex() const { return uses_regex_; }

 private:
  void run(std::size_t step, std::string_view text, int first, Scratch& scratch, Emit emit) const;

  std::vector<Step> steps_;
  bool uses_regex_ = false;
};

// Number of characters before byte `end`, at most `max`.
int leading_characters(std::string_view text, std::size_t end, int max);

// End of the piece of `text` that starts at `at`, for CutAtSpaceMarks.
inline std::size_t end_of_space_mark_piece(std::string_view text, std::size_t at) {
  const auto mark_at = [&](std::size_t i) { return text.substr(i, kSpaceMark.size()) == kSpaceMark; };
  while (mark_at(at)) at += kSpaceMark.size();
  const std::size_t end = text.find(kSpaceMark, at);
  return end == std::string_view::npos ? text.size() : end;
}

}  // namespace hawser::text
