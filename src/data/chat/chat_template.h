// Conversations to text, with the chat templates of Hugging Face tokenizers.
//
// A template is written in a subset of Jinja (docs/data.md lists it). Its text for a conversation is the one that
// transformers' apply_chat_template gives; what the subset lacks is rejected when the template is read, by line.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/chat/program.h"
#include "data/chat/value.h"

namespace hawser::data::chat {

struct Conversation {
  Value messages;  // a list of {"role": ..., "content": ...}
  Value tools;     // undefined: none
};

struct Range {
  std::size_t begin = 0, end = 0;

  bool operator==(const Range&) const = default;
};

struct Rendered {
  std::string text;
  std::vector<std::optional<Range>> contents;  // of each message: the bytes that came from it, its role apart
  std::vector<Range> generations;              // what stands in {% generation %} blocks
  bool has_generations = false;                // whether the template has such blocks
};

class ChatTemplate {
 public:
  // `variables`: "bos_token", "eos_token" and the like. `file` is for messages. UserError, with the template's line,
  // for what is wrong in it or not supported.
  ChatTemplate(const std::string& source, std::map<std::string, std::string> variables, std::string file);

  // TemplateError for a conversation that the template rejects (raise_exception) or cannot go through.
  Rendered render(const Conversation& conversation, bool add_generation_prompt = false) const;

  // What the template puts before an answer when it is asked for one: "<|im_start|>assistant\n". May be empty.
  const std::string& generation_prompt() const { return generation_prompt_; }

  // The variable of that name; "" where there is none.
  std::string eos_token() const;

  const std::string& file() const { return file_; }
  std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  Statement program_;
  std::map<std::string, std::string> variables_;
  std::string file_, generation_prompt_;
  std::uint64_t fingerprint_ = 0;
  bool has_generations_ = false;
};

// A template by its name (`chatml`, `llama-3`, ...), or null. Each says what the models of its name were trained on.
struct NamedTemplate {
  const char* name;
  const char* source;
  std::map<std::string, std::string> tokens;  // where the tokenizer does not name its own
};
const std::vector<NamedTemplate>& named_templates();
bool is_named(const std::string& name);

// The template that a recipe means: a name, a .jinja file, a tokenizer_config.json (or a folder with one), or, where
// `wanted` is empty, what lies beside the tokenizer: chat_template.jinja or tokenizer_config.json. Null where it is
// empty and there is none. Adds a problem at `key` for everything else.
std::shared_ptr<const ChatTemplate> open_chat_template(const std::string& wanted, const std::string& tokenizer,
                                                       const std::string& folder, const std::string& key,
                                                       Problems& problems);

}  // namespace hawser::data::chat
