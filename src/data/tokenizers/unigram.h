// Unigram: of all ways to cut a text into tokens, the one whose scores (log probabilities) have the greatest sum. Sums
// go from left to right as in the originals, since their rounding decides between equals: float64 in `tokenizers`,
// float32 in SentencePiece, which counts from 0 again after 100,000.
//
// Source: the original's optimised encoder; Kudo, "Subword regularization", ACL 2018.
#pragma once

#include <array>
#include <optional>

#include "data/tokenizers/trie.h"
#include "data/tokenizers/word_model.h"

namespace hawser::data {

struct Unigram final : WordModel {
  Trie tokens;
  std::vector<double> scores;           // by id
  double unknown_score = 0;             // of a character without a token
  std::optional<std::int32_t> unknown;  // stands for a character without a token; a run of them is one
  bool fuse_unknown = true;
  bool float32_sums = false;
  std::array<std::int32_t, 256> byte_ids;  // of <0x00> to <0xFF>, which take unknown's place; -1: not there

  Unigram() { byte_ids.fill(-1); }

  // Time is linear in the text's length, times that of the longest token.
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;

 private:
  template <class Sum>
  void encode_as(std::string_view text, std::vector<std::int32_t>& ids) const;
  void put_unknown(std::string_view text, std::vector<std::int32_t>& ids) const;
};

}  // namespace hawser::data
