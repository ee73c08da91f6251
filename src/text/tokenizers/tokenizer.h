// `Tokenizer`: converts text to token ids and back.
//
//   const auto tokenizer = load_tokenizer("model/tokenizer.json");
//   std::vector<std::int32_t> ids;
//   tokenizer->encode("Once upon a time", ids, true);
//
// load_tokenizer reads tokenizer.json of Hugging Face (BPE, WordPiece, Unigram), .model of SentencePiece and
// tekken.json of Mistral. Ids and decoded texts equal those of the original libraries; docs/tokenizers.md lists the
// supported parts and the comparisons. `truncation` and `padding` of a tokenizer.json are ignored, as in transformers.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hawser::text {

// Ids that a tokenizer puts before and after a text.
struct TextFrame {
  std::vector<std::int32_t> before, after;
};

// Immutable and thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of `text` to `ids`. Added tokens ("<|endoftext|>") in the text become their ids, except special
  // ones where split_special_tokens is declared; a .model or tekken.json without declarations beside it encodes special
  // tokens as text, as in the originals. `add_special` adds the ids of frame(). Invalid UTF-8 becomes U+FFFD, as with
  // Python's errors="replace" (SentencePiece: one per byte). Accepts any bytes; throws UserError only if the file's
  // normalizer expands the text beyond 512 MiB.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids, bool add_special) const = 0;

  // Appends the ids of a conversation that a chat template rendered: special tokens in the text become their ids with
  // every kind of file, but with split_special_tokens.
  virtual void encode_conversation(std::string_view text, std::vector<std::int32_t>& ids) const {
    encode(text, ids, false);
  }
  // Whether encode() encodes special tokens as text.
  virtual bool has_special_as_text() const { return false; }

  // Ids that `add_special` puts around a text: those of the post-processor, or of add_bos_token and add_eos_token;
  // begin of text for a .model or tekken.json without declarations.
  virtual TextFrame frame() const = 0;

  // Decodes ids to bytes. With a byte-level vocabulary the bytes may start or end inside a character; otherwise they
  // are complete characters, U+FFFD for invalid ones. Skips ids without a token (a model's padded vocabulary) and, with
  // `skip_special`, special tokens.
  virtual std::string decode_bytes(std::span<const std::int32_t> ids, bool skip_special = false) const = 0;

  // The byte of a byte token ("<0x1F>" of a vocabulary with byte fallback), a run of which is decoded together; nullopt
  // for other ids and for special tokens.
  virtual std::optional<unsigned char> byte_of(std::int32_t) const { return std::nullopt; }

  // Whether a token is special: it is no text of a user. Control pieces of a .model are.
  virtual bool is_special(std::int32_t id) const = 0;
  // Whether a chat template may mark the turns of a conversation with this token: a special token, or another added one
  // that is not white space. User-defined pieces of a .model are added tokens.
  virtual bool marks_turns(std::int32_t id) const { return is_special(id); }
  // The text of a token by itself: with its leading space, the byte of a byte token, the content of an added or special
  // token; "" for unknown tokens and ids without a token. Joined, the surfaces of a text's ids are the text, but for
  // the space that some tokenizers put before it and what a normalizer changes.
  virtual std::string surface(std::int32_t id) const = 0;

  // Decodes to valid UTF-8, as decode of the `tokenizers` library: invalid sequences become U+FFFD.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;

  // Highest id plus one, including added tokens.
  virtual std::int32_t vocab_size() const = 0;

  // Id of a token as written in the file ("<|endoftext|>", "Ġthe"; in a tekken.json without declarations: its bytes).
  virtual std::optional<std::int32_t> id_of(std::string_view token) const = 0;

  // Begin of text: the first id of the post-processor, else the token with a common name. End of text, which follows
  // documents and completions: the `eos_token` that the files next to it declare (declared_tokens.h), as in
  // transformers; else the token with a common name (<|endoftext|>, <|end_of_text|>, </s>, <eos>, [SEP]).
  virtual std::optional<std::int32_t> bos() const = 0;
  virtual std::optional<std::int32_t> eos() const = 0;

  // FNV-1a of the file and of the declared tokens and flags; identifies the tokenizer.
  virtual std::uint64_t fingerprint() const = 0;
};

// The tokenizer file in a folder: tokenizer.json, else tekken.json, else tokenizer.model; "" if there is none.
std::string tokenizer_in(const std::string& folder);

// The name that a file of this content has in a model's folder: one of these three. A file that is none of them
// counts as tokenizer.json, or, if it is no JSON, as tokenizer.model.
std::string tokenizer_file_name(const std::string& content);

// A checkpoint has the keys of a tokenizer's config.json that decide how a .model is read in a file of this name.
inline constexpr const char* kTokenizerModelFile = "tokenizer_model.json";
// Its content for a tokenizer: a folder, or a file in it. "" if nothing beside the tokenizer depends on a config.json.
std::string tokenizer_model_of(const std::string& tokenizer);

// Reads a tokenizer file, whose type it detects from the content, or the one in a folder: tokenizer.json, else
// tekken.json, else tokenizer.model. Throws UserError with all problems, by key, for a missing or broken file and for
// unsupported parts.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path);

}  // namespace hawser::text
