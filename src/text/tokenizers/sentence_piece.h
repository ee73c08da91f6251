// `SentencePieceTokenizer`: SentencePiece .model files, BPE and Unigram, with the same ids as the library. The library
// is not a dependency: its encoder processes a full text with a heap, this one caches words, and reading the file takes
// little code.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "text/tokenizers/added_tokens.h"
#include "text/tokenizers/charsmap.h"
#include "text/tokenizers/tokenizer.h"
#include "text/tokenizers/trie.h"
#include "text/tokenizers/word_model.h"

namespace hawser::text {

// The fields of a ModelProto that are used.
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
  std::int32_t unknown = 0, bos = 1, eos = 2;  // -1: none
  // What the trainer noted. transformers takes these instead of the piece of type `unknown`.
  std::int32_t unknown_id = 0;
  std::string unknown_piece = "<unk>", bos_piece = "<s>", eos_piece = "</s>";
  std::string unknown_surface = " \xE2\x81\x87 ";
  std::string charsmap, denormalizer;
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

// Throws std::invalid_argument with the reason, and with the byte offset of a malformed field.
SentencePieceModel parse_sentence_piece(std::string_view bytes);

// Sets `unknown`. Throws std::invalid_argument for unsupported and inconsistent models.
void check_sentence_piece(SentencePieceModel& model);

class SentencePieceTokenizer final : public Tokenizer {
 public:
  // Throws std::invalid_argument for unsupported and inconsistent models.
  SentencePieceTokenizer(SentencePieceModel model, std::uint64_t fingerprint);

  // Same as Tokenizer::encode, except that each byte of invalid UTF-8 becomes one U+FFFD, as in the library.
  // add_special puts the begin-of-text piece first. Control pieces written in the text are encoded as text.
  void encode(std::string_view text, std::vector<std::int32_t>& ids, bool add_special) const override;
  // Control pieces become their ids. The text between two of them is encoded by itself, as in the models' own code; a
  // space at its beginning is the one that encode() puts there.
  void encode_conversation(std::string_view text, std::vector<std::int32_t>& ids) const override;
  bool has_special_as_text() const override { return !control_.tokens().empty(); }
  TextFrame frame() const override;
  std::string decode_bytes(std::span<const std::int32_t> ids, bool skip_special) const override;
  std::optional<unsigned char> byte_of(std::int32_t id) const override;
  bool is_special(std::int32_t id) const override;
  bool marks_turns(std::int32_t id) const override;
  std::string surface(std::int32_t id) const override;
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

  // The library's normalizer: applies replacements and writes spaces as marks.
  void normalize(std::string_view text, std::string& out) const;
  // One step of it at the start of `text`: number of bytes consumed, and their replacement.
  Charsmap::Match replacement(std::string_view text) const;
  // Length of the longest user-defined symbol that `text` starts with, 0 if none. Writes its id to `id` if not null.
  std::size_t user_defined(std::string_view text, std::int32_t* id) const;
  void encode_words(std::string_view run, WordCache& words, IdSink& sink) const;

  SentencePieceModel model_;
  std::uint64_t fingerprint_;
  TokenIds ids_;
  AddedTokens control_;
  Charsmap charsmap_;
  bool plain_[128] = {};  // ASCII characters that are not replaced before another ASCII character
  Trie user_defined_;
  bool user_defined_starts_[256] = {};
  bool any_user_defined_ = false;
  bool cut_ = false;  // BPE: words may be encoded separately
  std::unique_ptr<WordModel> words_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<WordCache>> idle_;  // one per concurrent encode() call, at the peak
};

}  // namespace hawser::text
