// WordPiece: the longest token that a word starts with, then the longest that goes on from there, to its end.
#pragma once

#include "data/tokenizers/trie.h"
#include "data/tokenizers/word_model.h"

namespace hawser::data {

struct WordPiece final : WordModel {
  Trie tokens;
  std::string continuing_prefix = "##";  // marks tokens that go on
  std::int32_t unknown = 0;              // stands for a whole word that does not come out, or is too long
  std::size_t max_characters = 100;

  void encode(std::string_view word, std::vector<std::int32_t>& ids) const override;
};

}  // namespace hawser::data
