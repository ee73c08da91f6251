// What a model is to go on from: texts, conversations or ids, from the command line or a file.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "data/chat/chat_template.h"
#include "data/tokenizers/tokenizer.h"

namespace hawser::generate {

struct Prompt {
  std::string text;  // as it was given, or as the chat template wrote it; "" of ids
  std::vector<std::int32_t> ids;
  std::int64_t line = 0;  // of its file; 0: none
  bool chat = false;      // a conversation: it ends where the assistant is to answer
};

// Where a prompt stands, for messages.
struct PromptPlace {
  std::string file;
  std::string at;  // "line 3", "--prompt"
};

// A message of a conversation: {"role": role, "content": content}.
data::chat::Value message(const std::string& role, const std::string& content);

// Makes ids. Each function adds a problem and returns none where there is one.
class PromptEncoder {
 public:
  // tokenizer: null where the model has none. chat_template: null where there is none; `without` then says why, where
  // more is known than that. `begin`: what an empty text is. The tokenizer outlives this.
  PromptEncoder(std::string model, const data::Tokenizer* tokenizer,
                std::shared_ptr<const data::chat::ChatTemplate> chat_template, Problems without,
                std::optional<std::int64_t> begin, std::int64_t vocabulary);

  // As the tokenizer encodes a text, with what it puts before and behind one.
  std::optional<Prompt> text(const std::string& text, const PromptPlace& place, Problems& problems) const;
  // The template's text up to where the assistant answers; nothing is added.
  std::optional<Prompt> conversation(const data::chat::Conversation& conversation, const PromptPlace& place,
                                     Problems& problems) const;
  std::optional<Prompt> ids(const std::vector<std::int64_t>& ids, const PromptPlace& place, Problems& problems) const;

  const data::chat::ChatTemplate* chat_template() const { return template_.get(); }
  std::int64_t vocabulary() const { return vocabulary_; }
  // The token that ends an answer of a conversation, as the template writes it: the first special token behind an
  // assistant's message, or the template's eos_token. None where there is no template or no such token.
  std::optional<std::int64_t> end_of_turn() const;

 private:
  bool has_tokenizer(const PromptPlace& place, Problems& problems) const;
  std::optional<Prompt> checked(Prompt prompt, const PromptPlace& place, Problems& problems) const;

  std::string model_;
  const data::Tokenizer* tokenizer_;
  std::shared_ptr<const data::chat::ChatTemplate> template_;
  Problems without_;
  std::optional<std::int64_t> begin_;
  std::int64_t vocabulary_;
};

// A file of prompts, perhaps compressed (.gz, .zst), or "-" for standard input, which is .jsonl: .txt has one a line;
// .jsonl has an object a line with `prompt` (a text, or a list of messages), `messages` (with `tools`, if any) or
// `input_ids`; other keys do not count. Blank lines are passed over. Adds the problems of all lines, or that the file
// cannot be read.
std::vector<Prompt> read_prompts(const std::string& path, const PromptEncoder& encoder, Problems& problems);

}  // namespace hawser::generate
