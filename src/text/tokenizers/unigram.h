// `Unigram`: splits a text into the tokens whose scores (log probabilities) have the greatest sum. Sums are computed
// from left to right as in the originals, because rounding decides ties: float64 in `tokenizers`, float32 in
// SentencePiece, which restarts sums at 0 when they exceed 100,000 in magnitude.
//
// Source: the optimized encoder of SentencePiece; Kudo, "Subword regularization", ACL 2018.
#pragma once

#include <array>
#include <optional>

#include "text/tokenizers/trie.h"
#include "text/tokenizers/word_model.h"

namespace hawser::text {

struct Unigram final : WordModel {
  Trie tokens;
  std::vector<double> scores;           // by id
  double unknown_score = 0;             // of a character without a token
  std::optional<std::int32_t> unknown;  // id of characters without a token
  bool fuse_unknown = true;             // a run of them becomes one id
  bool float32_sums = false;
  std::array<std::int32_t, 256> byte_ids;  // of <0x00> to <0xFF>, used instead of `unknown`; -1: none

  Unigram() { byte_ids.fill(-1); }

  // Takes time linear in the length of the text times that of the longest token.
  void encode(std::string_view text, std::vector<std::int32_t>& ids) const override;

 private:
  template <class Sum>
  void encode_as(std::string_view text, std::vector<std::int32_t>& ids) const;
  void put_unknown(std::string_view text, std::vector<std::int32_t>& ids) const;
};

}  // namespace hawser::text
