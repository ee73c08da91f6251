// Added tokens: whole strings ("<|im_start|>") that text is searched for before anything else happens to it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/function_ref.h"

namespace hawser::data {

struct AddedToken {
  std::int32_t id = 0;
  std::string content;
  bool single_word = false;  // matches only where no word character touches it
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // and after it
  bool normalized = false;   // searched for after those that are not, in normalized text
  bool special = false;      // left out by decode(skip_special)
};

// Finds tokens in text: leftmost first, of several at one place the longest.
class AddedTokens {
 public:
  // Called with a run of text and id -1, or with a match and its id.
  using Visit = FunctionRef<void(std::string_view, std::int32_t)>;

  AddedTokens() = default;
  // `normalize` says what the normalizer makes of a token.
  explicit AddedTokens(std::vector<AddedToken> tokens, FunctionRef<std::string(const std::string&)> normalize);

  // Calls `visit` for all of `text` in order; runs of text are not empty. The first finds tokens that are searched for
  // in the text as it is, the second those with `normalized`, in what the normalizer makes of a run.
  void find(std::string_view text, Visit visit) const { find_in(plain_, text, visit); }
  void find_normalized(std::string_view text, Visit visit) const { find_in(normalized_, text, visit); }

  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  // A trie over bytes. Children are a sorted list: a node has one or two of them nearly always.
  struct Node {
    std::vector<std::pair<unsigned char, int>> children;
    int token = -1;  // index into tokens_
  };
  struct Search {
    std::vector<Node> nodes{1};
    bool starts[256] = {};  // bytes that some token begins with
    int only_start = -1;    // that byte, if there is one only
    void add(std::string_view content, int token);
    int child(int node, unsigned char byte) const;
  };

  void find_in(const Search& trie, std::string_view text, Visit visit) const;
  static bool is_whole_word(std::string_view text, std::size_t begin, std::size_t end);

  std::vector<AddedToken> tokens_;
  Search plain_, normalized_;
};

}  // namespace hawser::data
