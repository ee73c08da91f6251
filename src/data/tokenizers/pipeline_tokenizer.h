// A tokenizer put together from the parts that a file describes: added tokens, normalizer, pre-tokenizer, model,
// decoder. Made by load_tokenizer.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "data/tokenizers/added_tokens.h"
#include "data/tokenizers/decoder.h"
#include "data/tokenizers/normalizer.h"
#include "data/tokenizers/pre_tokenizer.h"
#include "data/tokenizers/tokenizer.h"
#include "data/tokenizers/word_model.h"

namespace hawser::data {

struct TokenizerParts {
  AddedTokens added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  bool words_in_byte_level = false;  // the pre-tokenizer leaves words in the byte-level alphabet; the model wants bytes
  std::unique_ptr<WordModel> model;
  Decoder decoder;
  std::vector<std::int32_t> prefix, suffix;  // what add_special puts around a text
  std::vector<std::int32_t> special;         // left out by decode(skip_special), besides added tokens that are
  TokenIds ids;                              // tokens as the file writes them, added ones included
  std::vector<std::string> tokens;           // by id: the same
  std::vector<bool> present;                 // by id: whether it has a token
  std::vector<std::string> bytes;            // by id: what a token stands for, where that needs no neighbours, or empty
  std::uint64_t fingerprint = 0;

  void put_token(std::int32_t id, std::string token);
};

class PipelineTokenizer final : public Tokenizer {
 public:
  explicit PipelineTokenizer(TokenizerParts parts);
  ~PipelineTokenizer() override;

  void encode(std::string_view text, std::vector<std::int32_t>& ids, bool add_special) const override;
  TextFrame frame() const override { return {parts_.prefix, parts_.suffix}; }
  std::string decode_bytes(std::span<const std::int32_t> ids, bool skip_special) const override;
  std::int32_t vocab_size() const override { return static_cast<std::int32_t>(parts_.tokens.size()); }
  std::optional<std::int32_t> id_of(std::string_view token) const override;
  std::optional<std::int32_t> bos() const override { return bos_; }
  std::optional<std::int32_t> eos() const override { return eos_; }
  std::uint64_t fingerprint() const override { return parts_.fingerprint; }

 private:
  struct Scratch;
  class Lease;

  void encode_run(std::string_view run, bool first, Scratch& scratch, IdSink& sink) const;

  TokenizerParts parts_;
  std::vector<bool> special_;  // by id
  std::optional<std::int32_t> bos_, eos_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;  // as many as encode() calls ever ran at once
};

// Of ids that a file may name in several ways: the first of some names that it has.
std::optional<std::int32_t> first_of(const TokenIds& ids, std::initializer_list<std::string_view> names);
std::optional<std::int32_t> usual_bos(const TokenIds& ids);
std::optional<std::int32_t> usual_eos(const TokenIds& ids);

}  // namespace hawser::data
