// `PipelineTokenizer`: a tokenizer assembled from the parts of a file: added tokens, normalizer, pre-tokenizer, model
// and decoder. load_tokenizer creates it.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "text/tokenizers/added_tokens.h"
#include "text/tokenizers/normalizer.h"
#include "text/tokenizers/pre_tokenizer.h"
#include "text/tokenizers/token_decoder.h"
#include "text/tokenizers/tokenizer.h"
#include "text/tokenizers/word_model.h"

namespace hawser::text {

struct TokenizerParts {
  AddedTokens added;
  AddedTokens of_conversations;  // found in conversations only
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  bool words_in_byte_level = false;  // the pre-tokenizer outputs the byte-level alphabet, the model expects bytes
  std::unique_ptr<WordModel> model;
  Decoder decoder;
  std::vector<std::int32_t> prefix, suffix;  // ids that add_special puts before and after a text
  std::vector<std::int32_t> special;         // skipped by decode(skip_special), in addition to special added tokens
  TokenIds ids;                              // tokens as written in the file, including added tokens
  std::vector<std::string> tokens;           // by id: the same strings
  std::vector<bool> present;                 // by id: whether it has a token
  std::optional<std::int32_t> unknown;       // id that the model gives to text outside its vocabulary
  std::vector<std::string> bytes;  // by id: decoded bytes if they do not depend on neighbours; else no entries
  std::uint64_t fingerprint = 0;
  std::string eos;  // the end-of-text token that the tokenizer's settings declare, one of `ids`; "": none

  void put_token(std::int32_t id, std::string token);
};

class PipelineTokenizer final : public Tokenizer {
 public:
  explicit PipelineTokenizer(TokenizerParts parts);
  ~PipelineTokenizer() override;

  void encode(std::string_view text, std::vector<std::int32_t>& ids, bool add_special) const override;
  void encode_conversation(std::string_view text, std::vector<std::int32_t>& ids) const override;
  bool has_special_as_text() const override { return !parts_.of_conversations.tokens().empty(); }
  TextFrame frame() const override { return {parts_.prefix, parts_.suffix}; }
  std::string decode_bytes(std::span<const std::int32_t> ids, bool skip_special) const override;
  std::optional<unsigned char> byte_of(std::int32_t id) const override;
  bool is_special(std::int32_t id) const override { return id >= 0 && id < vocab_size() && special_[id]; }
  bool marks_turns(std::int32_t id) const override;
  std::string surface(std::int32_t id) const override;
  std::int32_t vocab_size() const override { return static_cast<std::int32_t>(parts_.tokens.size()); }
  std::optional<std::int32_t> id_of(std::string_view token) const override;
  std::optional<std::int32_t> bos() const override { return bos_; }
  std::optional<std::int32_t> eos() const override { return eos_; }
  std::uint64_t fingerprint() const override { return parts_.fingerprint; }

 private:
  struct Scratch;
  class Lease;

  void encode_run(std::string_view run, int first, Scratch& scratch, IdSink& sink) const;

  TokenizerParts parts_;
  std::vector<bool> special_, added_;  // by id
  std::optional<std::int32_t> bos_, eos_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;  // one per concurrent encode() call, at the peak
};

// Id of the first of `names` that the file has. usual_bos and usual_eos try the common names of these tokens.
std::optional<std::int32_t> first_of(const TokenIds& ids, std::initializer_list<std::string_view> names);
std::optional<std::int32_t> usual_bos(const TokenIds& ids);
std::optional<std::int32_t> usual_eos(const TokenIds& ids);

}  // namespace hawser::text
