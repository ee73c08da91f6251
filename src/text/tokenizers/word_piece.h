// `WordPiece`: greedy encoding that repeatedly takes the longest token that the rest of the word starts with.
#pragma once

#include "text/tokenizers/trie.h"
#include "text/tokenizers/word_model.h"

namespace hawser::text {

struct WordPiece final : WordModel {
  Trie tokens;
  std::string continuing_prefix = "##";  // of tokens that do not start a word
  std::int32_t unknown = 0;              // id of a word that cannot be split into tokens or is too long
  std::size_t max_characters = 100;

  void encode(std::string_view word, std::vector<std::int32_t>& ids) const override;
};

}  // namespace hawser::text
