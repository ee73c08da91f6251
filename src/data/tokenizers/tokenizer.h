// Text to token ids and back.
//
//   const auto tokenizer = load_tokenizer("model/tokenizer.json");
//   std::vector<std::int32_t> ids;
//   tokenizer->encode("Once upon a time", ids, true);
//
// What load_tokenizer reads today: byte-level BPE in Hugging Face's tokenizer.json (SmolLM2, Llama 3, GPT-2 kinds),
// with ids equal to those of the `tokenizers` library. Like transformers, it leaves `truncation` and `padding` unused.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hawser::data {

// Immutable; every method may be called from several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Appends the ids of `text` to `ids`. Added tokens ("<|endoftext|>") written in the text become their ids. With
  // `add_special`, what the file's post-processor puts before and after a text (Llama 3's begin-of-text) comes too.
  // Bad UTF-8 is read as U+FFFD, as Python's errors="replace" does; never throws for any bytes.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& ids, bool add_special) const = 0;

  // The bytes that the ids stand for; they may start or end inside a character. Ids without a token (a model's padded
  // vocabulary) stand for nothing; with `skip_special`, special tokens neither.
  virtual std::string decode_bytes(std::span<const std::int32_t> ids, bool skip_special = false) const = 0;

  // The same as valid UTF-8, bad sequences replaced by U+FFFD: what the `tokenizers` library's decode returns.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;

  // Highest id plus one, added tokens included.
  virtual std::int32_t vocab_size() const = 0;

  // Id of a token as the file writes it ("<|endoftext|>", "Ġthe").
  virtual std::optional<std::int32_t> id_of(std::string_view token) const = 0;

  // Begin of text: what the post-processor puts first, else the token of a usual name. End of text: the token of a
  // usual name (<|endoftext|>, <|end_of_text|>, </s>, <eos>): what separates documents, not turns of a chat.
  virtual std::optional<std::int32_t> bos() const = 0;
  virtual std::optional<std::int32_t> eos() const = 0;

  // FNV-1a of the file: two files with one fingerprint are taken to be one tokenizer.
  virtual std::uint64_t fingerprint() const = 0;
};

// Reads a tokenizer.json, or the one in a folder. UserError, all problems together, for a missing or broken file and
// for anything in it that is not supported, naming the key.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path);

}  // namespace hawser::data
