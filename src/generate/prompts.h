// Prompts of generation: texts, conversations or token ids, from the command line or a file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "text/chat/chat_template.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::generate {

struct Prompt {
  std::string text;  // as given, or as rendered by the chat template; "" for ids
  std::vector<std::int32_t> ids;
  std::optional<std::int64_t> line = {};  // of its file
  bool chat = false;                      // a conversation that ends where the assistant answers
  bool answered = false;                  // whose last message is an answer already
};

// Source of a prompt, for messages.
struct PromptPlace {
  std::string file;
  std::string at;  // "line 3", "--prompt"
};

// A message of a conversation: {"role": role, "content": content}.
text::chat::Value message(const std::string& role, const std::string& content);

// Encodes prompts to token ids. Each function adds a problem and returns nullopt on an error.
class PromptEncoder {
 public:
  // tokenizer: null if the model has none; it outlives this. chat_template: null if there is none; `without` then
  // contains the reasons, if any are known. `begin`: the token for an empty text.
  PromptEncoder(std::string model, const text::Tokenizer* tokenizer,
                std::shared_ptr<const text::chat::ChatTemplate> chat_template, Problems without,
                std::optional<std::int64_t> begin, std::int64_t vocabulary);

  // Encodes a text, with the special tokens that the tokenizer adds at its beginning and end.
  std::optional<Prompt> text(const std::string& text, const PromptPlace& place, Problems& problems) const;
  // The text rendered by the template up to the assistant's answer, without additional special tokens.
  std::optional<Prompt> conversation(const text::chat::Conversation& conversation, const PromptPlace& place,
                                     Problems& problems) const;
  std::optional<Prompt> ids(const std::vector<std::int64_t>& ids, const PromptPlace& place, Problems& problems) const;

  const text::chat::ChatTemplate* chat_template() const { return template_.get(); }
  std::int64_t vocabulary() const { return vocabulary_; }
  // The tokens that end an answer of a conversation: text::chat::turn_ends, or the template's eos_token if there is
  // none. Empty if there is no template or no such token.
  std::vector<std::int64_t> turn_ends() const;
  // Whether the template wrote the date of today in a conversation so far.
  bool wrote_date() const { return wrote_date_; }

 private:
  bool has_tokenizer(const PromptPlace& place, Problems& problems) const;
  std::optional<Prompt> checked(Prompt prompt, const PromptPlace& place, Problems& problems) const;

  std::string model_;
  const text::Tokenizer* tokenizer_;
  std::shared_ptr<const text::chat::ChatTemplate> template_;
  Problems without_;
  std::optional<std::int64_t> begin_;
  std::int64_t vocabulary_;
  std::tm time_ = text::chat::time_now();  // that strftime_now gives the template
  mutable bool wrote_date_ = false;
};

// Reads a file of prompts, optionally compressed (.gz, .zst), or "-" for .jsonl on standard input. .txt: one prompt per
// line. .jsonl: one object per line with `prompt` (a text or a list of messages), `messages` or `conversations` (with
// optional `system` and `tools`, as prepare::parse_line reads them), `instruction` or `question` (with optional `input`
// or `context`; the answer in the line is left out) or `input_ids` (with optional `attention_mask`); other keys are
// ignored. Skips blank lines. Adds the problems of all lines, or that the file cannot be read.
std::vector<Prompt> read_prompts(const std::string& path, const PromptEncoder& encoder, Problems& problems);

// The tools of a chat: a JSON list in a file, in the form that a line's `tools` have. Throws UserError at --tools.
text::chat::Value read_tools(const std::string& path);

}  // namespace hawser::generate
