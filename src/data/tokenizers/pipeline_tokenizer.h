// Byte-level BPE, put together from the parts that a tokenizer.json describes. Made by load_tokenizer.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/tokenizers/added_tokens.h"
#include "data/tokenizers/bpe.h"
#include "data/tokenizers/pre_tokenizer.h"
#include "data/tokenizers/tokenizer.h"

namespace hawser::data {

// A map from strings that is asked with string_views.
struct StringHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
using TokenIds = std::unordered_map<std::string, std::int32_t, StringHash, std::equal_to<>>;

struct ByteBpeParts {
  Bpe bpe;
  PreTokenizer pre_tokenizer;
  AddedTokens added;
  std::vector<std::int32_t> prefix, suffix;  // what add_special puts around a text
  TokenIds ids;                              // tokens as the file writes them, added ones included
  std::vector<std::string> bytes;            // by id: what a token stands for
  std::uint64_t fingerprint = 0;
};

class ByteBpeTokenizer final : public Tokenizer {
 public:
  explicit ByteBpeTokenizer(ByteBpeParts parts);
  ~ByteBpeTokenizer() override;

  void encode(std::string_view text, std::vector<std::int32_t>& ids, bool add_special) const override;
  std::string decode_bytes(std::span<const std::int32_t> ids, bool skip_special) const override;
  std::int32_t vocab_size() const override { return static_cast<std::int32_t>(parts_.bytes.size()); }
  std::optional<std::int32_t> id_of(std::string_view token) const override;
  std::optional<std::int32_t> bos() const override { return bos_; }
  std::optional<std::int32_t> eos() const override { return eos_; }
  std::uint64_t fingerprint() const override { return parts_.fingerprint; }

 private:
  struct Scratch;
  class Lease;

  ByteBpeParts parts_;
  std::vector<bool> special_;  // by id
  std::optional<std::int32_t> bos_, eos_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;  // as many as encode() calls ever ran at once
};

}  // namespace hawser::data
