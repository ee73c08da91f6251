// `AddedTokens`: finds the added tokens of a tokenizer.json ("<|im_start|>") in text, before pre-tokenization.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"

namespace hawser::text {

struct AddedToken {
  // What happens to a declared token that the tokenizer lacks: it is added, its id stays free, or nothing.
  enum class IfNew { add, reserve, leave };

  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  // matches only without adjacent word characters
  bool lstrip = false;       // the match includes white space before it
  bool rstrip = false;       // and after it
  bool normalized = false;   // matched after the others, in normalized text
  bool special = false;      // skipped by decode(skip_special)
  IfNew if_new = IfNew::add;
};

// Finds tokens in text: the leftmost match, and the longest at one position.
class AddedTokens {
 public:
  // Called with a run of text and id -1, or with a match and its id.
  using Visit = FunctionRef<void(std::string_view, std::int32_t)>;

  AddedTokens() = default;
  // `normalize` returns the normalized content of a token. `split_special`: special tokens are part of a run of text.
  explicit AddedTokens(std::vector<AddedToken> tokens, FunctionRef<std::string(const std::string&)> normalize,
                       bool split_special = false);

  // Call `visit` for all of `text` in order; runs of text are not empty. `find` matches tokens in the original text,
  // `find_normalized` matches those with `normalized` in a normalized run.
  void find(std::string_view text, Visit visit) const { find_in(plain_, text, visit); }
  void find_normalized(std::string_view text, Visit visit) const { find_in(normalized_, text, visit); }

  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  // Node of a trie over bytes. Children are a sorted list: almost all nodes have one or two.
  struct Node {
    std::vector<std::pair<unsigned char, int>> children;
    int token = -1;  // index into tokens_
  };
  struct Search {
    std::vector<Node> nodes{1};
    bool starts[256] = {};  // first bytes of the tokens
    int only_start = -1;    // that byte if there is only one, else -1
    void add(std::string_view content, int token);
    int child(int node, unsigned char byte) const;
  };

  void find_in(const Search& trie, std::string_view text, Visit visit) const;
  static bool is_whole_word(std::string_view text, std::size_t begin, std::size_t end);

  std::vector<AddedToken> tokens_;
  bool split_special_ = false;
  Search plain_, normalized_;
};

}  // namespace hawser::text
