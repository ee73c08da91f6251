// Text to token ids and back.
//
//   const auto tokenizer = load_tokenizer("model/tokenizer.json");
//   std::vector<std::int32_t> ids;
//   tokenizer->encode("Once upon a time", ids, true);
//
// What load_tokenizer reads: Hugging Face's tokenizer.json (BPE, WordPiece, Unigram), SentencePiece's .model and
// Mistral's tekken.json, with ids and decoded texts equal to those of the originals; docs/tokenizers.md has the list
// and the proof. Like transformers, it leaves a tokenizer.json's `truncation` and `padding` unused.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hawser::data {

// What a tokenizer puts before and after a text.
struct TextFrame {
  std::vector<std::int32_t> before, after;
};

// Immutable; every method may be called from several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of `text` to `ids`. Added tokens of a tokenizer.json ("<|endoftext|>") written in the text become
  // their ids; the special tokens of a .model or tekken.json are text, as in the originals. With `add_special`, what
  // the file's post-processor puts before and after a text comes too (a .model, tekken.json: begin of text before it).
  // Bad UTF-8 is read as U+FFFD, as Python's errors="replace" does (SentencePiece: one for each byte); never throws for
  // any bytes, but UserError for a text of which the file's normalizer makes more than 512 MiB.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids, bool add_special) const = 0;

  // What `add_special` puts around any text.
  virtual TextFrame frame() const = 0;

  // The bytes that the ids stand for. In byte-level vocabularies they may start or end inside a character; others give
  // whole characters, U+FFFD for what is none. Ids without a token (a model's padded vocabulary) stand for nothing;
  // with `skip_special`, special tokens neither.
  virtual std::string decode_bytes(std::span<const std::int32_t> ids, bool skip_special = false) const = 0;

  // The same as valid UTF-8, bad sequences replaced by U+FFFD: what the `tokenizers` library's decode returns.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;

  // Highest id plus one, added tokens included.
  virtual std::int32_t vocab_size() const = 0;

  // Id of a token as the file writes it ("<|endoftext|>", "Ġthe"; of a tekken.json its bytes).
  virtual std::optional<std::int32_t> id_of(std::string_view token) const = 0;

  // Begin of text: what the post-processor puts first, else the token of a usual name. End of text: the token of a
  // usual name (<|endoftext|>, <|end_of_text|>, </s>, <eos>): what separates documents, not turns of a chat.
  virtual std::optional<std::int32_t> bos() const = 0;
  virtual std::optional<std::int32_t> eos() const = 0;

  // FNV-1a of the file: two files with one fingerprint are taken to be one tokenizer.
  virtual std::uint64_t fingerprint() const = 0;
};

// Reads a tokenizer file, known by its content, or the one in a folder: tokenizer.json, else tekken.json, else
// tokenizer.model. UserError, all problems together, for a missing or broken file and
// for anything in it that is not supported, naming the key.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path);

}  // namespace hawser::data
