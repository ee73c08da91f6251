// SentencePiece's .model files, BPE and Unigram, with ids equal to those of the library. It is not used itself: its
// encoder goes through a whole text with a heap, where ours remembers words, and the file is read in a page of code.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "data/tokenizers/charsmap.h"
#include "data/tokenizers/tokenizer.h"
#include "data/tokenizers/trie.h"
#include "data/tokenizers/word_model.h"

namespace hawser::data {

// A ModelProto, as far as it matters here.
struct SentencePieceModel {
  enum class Type : int { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::normal;
  };
  enum class Kind : int { unigram = 1, bpe = 2, word = 3, character = 4 };

  std::vector<Piece> pieces;
  Kind kind = Kind::unigram;
  bool whitespace_as_suffix = false, byte_fallback = false;
  std::int32_t unknown = 0, bos = 1, eos = 2;  // -1: not there
  std::string unknown_surface = " \xE2\x81\x87 ";
  std::string charsmap, denormalizer;
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

// Throws std::invalid_argument, saying what is wrong and at which byte.
SentencePieceModel parse_sentence_piece(std::string_view bytes);

class SentencePieceTokenizer final : public Tokenizer {
 public:
  // Throws std::invalid_argument for what is not supported.
  SentencePieceTokenizer(SentencePieceModel model, std::uint64_t fingerprint);

  // As Tokenizer::encode, but each byte of bad UTF-8 is a U+FFFD of its own, as in the library. add_special puts the
  // begin-of-text piece first. Control pieces written in the text are text.
  void encode(std::string_view text, std::vector<std::int32_t>& ids, bool add_special) const override;
  TextFrame frame() const override;
  std::string decode_bytes(std::span<const std::int32_t> ids, bool skip_special) const override;
  std::int32_t vocab_size() const override { return static_cast<std::int32_t>(model_.pieces.size()); }
  std::optional<std::int32_t> id_of(std::string_view token) const override;
  std::optional<std::int32_t> bos() const override { return named(model_.bos); }
  std::optional<std::int32_t> eos() const override { return named(model_.eos); }
  std::uint64_t fingerprint() const override { return fingerprint_; }

 private:
  std::optional<std::int32_t> named(std::int32_t id) const {
    return id >= 0 && id < vocab_size() ? std::optional(id) : std::nullopt;
  }
  void make_bpe();
  void make_unigram();
  void look_at_ascii();

  // The library's normalizer: replacements, spaces as marks.
  void normalize(std::string_view text, std::string& out) const;
  // What one step of it makes of the start of `text`: bytes taken, and what stands for them.
  Charsmap::Match replacement(std::string_view text) const;
  // Length of the user-defined symbol that `text` starts with, 0 for none; its id goes to `id`.
  std::size_t user_defined(std::string_view text, std::int32_t* id) const;
  void encode_words(std::string_view run, WordCache& words, IdSink& sink) const;

  SentencePieceModel model_;
  std::uint64_t fingerprint_;
  TokenIds ids_;
  Charsmap charsmap_;
  bool plain_[128] = {};  // ASCII characters that stand for themselves before another ASCII character
  Trie user_defined_;
  bool user_defined_starts_[256] = {};
  bool any_user_defined_ = false;
  bool cut_ = false;  // BPE: words may be encoded alone
  std::unique_ptr<WordModel> words_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<WordCache>> idle_;  // as many as encode() calls ever ran at once
};

}  // namespace hawser::data
