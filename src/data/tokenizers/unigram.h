// Unigram: of all ways to cut a text into tokens, the one whose scores (log probabilities) have the greatest sum.
#pragma once

#include <array>
#include <optional>

#include "data/tokenizers/trie.h"
#include "data/tokenizers/word_model.h"

namespace hawser::data {

struct Unigram final : WordModel {
  // Sums as the original takes them: the `tokenizers` library in float64, SentencePiece in float32.
  enum class Sums { float64, float32 };

  Trie tokens;
  std::vector<double> scores;           // by id
  std::vector<bool> always;             // by id, may be empty: SentencePiece's user-defined symbols, always preferred
  double least = 0, greatest = 0;       // of the scores; a character without a token scores `least` - 10
  std::optional<std::int32_t> unknown;  // stands for a character without a token; a run of them is one
  bool fuse_unknown = true;
  std::array<std::int32_t, 256> byte_ids;  // of <0x00> to <0xFF>, which take unknown's place; -1: not there
  Sums sums = Sums::float64;

  Unigram() { byte_ids.fill(-1); }

  // Time is linear in the text's length, times that of the longest token.
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;

 private:
  template <class Sum>
  void encode_as(std::string_view text, std::vector<std::int32_t>& ids) const;
  void put_unknown(std::string_view text, std::vector<std::int32_t>& ids) const;
};

}  // namespace hawser::data
