// Cuts text into the words that BPE works on, by the steps of a tokenizer.json's `pre_tokenizer`.
//
// Every kind we read comes down to two steps: a split by a pattern, and a space put before a piece that has none.
// Each piece is a text of its own to the next step: lookaround does not see its neighbours.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "data/function_ref.h"
#include "data/tokenizers/regex.h"

namespace hawser::data {

// What becomes of the text that a pattern matches.
enum class SplitBehavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

// The pattern that ByteLevel brings with `use_regex`.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class PreTokenizer {
 public:
  using Emit = FunctionRef<void(std::string_view)>;

  // One a thread; grows to what the steps need.
  struct Scratch {
    Regex::Scratch regex;
    std::vector<std::string> prefixed;  // one a step: the piece with its space
  };

  // `invert`: what lies between matches counts as the match.
  void add_split(Regex pattern, SplitBehavior behavior, bool invert);
  void add_prefix_space() { steps_.emplace_back(PrefixSpace{}); }

  // Calls `emit` with each piece, in order, none empty. `text` is valid UTF-8.
  void split(std::string_view text, Scratch& scratch, Emit emit) const;

 private:
  struct Split {
    Regex pattern;
    SplitBehavior behavior;
    bool invert;
  };
  struct PrefixSpace {};

  void run(std::size_t step, std::string_view text, Scratch& scratch, Emit emit) const;
  void run_split(const Split& split, std::size_t step, std::string_view text, Scratch& scratch, Emit emit) const;

  std::vector<std::variant<Split, PrefixSpace>> steps_;
};

}  // namespace hawser::data
