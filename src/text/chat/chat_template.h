// `ChatTemplate`: renders a conversation as text, with the chat template of a Hugging Face tokenizer.
//
// Templates are written in a subset of Jinja (docs/data.md lists it). The rendered text equals that of transformers'
// apply_chat_template. Statements, filters and tests outside the subset are rejected when the template is parsed,
// methods and argument values when it is rendered.
#pragma once

#include <cstdint>
#include <ctime>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/chat/contents.h"
#include "text/chat/template_date.h"
#include "text/chat/template_program.h"
#include "text/chat/value.h"

namespace hawser::text::chat {

struct Conversation {
  Value messages;        // a list of {"role": ..., "content": ...}
  Value tools = {};      // undefined: no tools
  Value documents = {};  // undefined: none
  Dict variables = {};   // others that the template reads, such as enable_thinking
  // What strftime_now writes: the fixed date of training data, or the time of a question.
  std::tm time = kTemplateDate;
};

// The conversation up to a message.
Conversation first_messages(const Conversation& conversation, std::size_t count);

struct Range {
  std::size_t begin = 0, end = 0;

  bool operator==(const Range&) const = default;
};

struct Rendered {
  std::string text;
  std::vector<std::optional<Range>> contents;  // per message: where its contents are in `text`
  std::vector<bool> has_content;               // per message: whether its content is in `text`, not only its calls
  // Per message, for each of calls_of (contents.h): where the name of the function begins in `text`; nullopt: nowhere.
  std::vector<std::vector<std::optional<std::size_t>>> calls;
  std::vector<Range> generations;  // bytes inside {% generation %} blocks
  bool has_generations = false;    // whether the template has such blocks
  bool asked_time = false;         // whether the template called strftime_now
};

// A second template, for conversations with tools, as in transformers.
struct ToolUse {
  std::string source, file;
};

class ChatTemplate {
 public:
  // `variables`: "bos_token", "eos_token" and others. `file` is used in messages. Throws UserError with the template's
  // line for syntax errors and unsupported constructs of `source`; used_for throws those of `tool_use`.
  ChatTemplate(const std::string& source, std::map<std::string, std::string> variables, std::string file,
               std::optional<ToolUse> tool_use = std::nullopt);

  // The template to render this conversation with: this one, or the one for conversations with tools.
  const ChatTemplate& used_for(const Conversation& conversation) const;

  // Throws TemplateError if the template rejects the conversation (raise_exception) or fails on it, and where it would
  // write a content that is null, a list of parts or an object as Python prints it. What the template cannot write is
  // changed before: contents.h.
  Rendered render(const Conversation& conversation, bool add_generation_prompt = false) const;

  // Text that add_generation_prompt appends, such as "<|im_start|>assistant\n". May be empty.
  const std::string& generation_prompt() const { return generation_prompt_; }

  // What begins an answer: the generation prompt; of a template without one, what it writes before an assistant's
  // contents, without spaces at its end. May be empty.
  const std::string& opening() const { return opening_; }

  // Text between a user's message and an answer, "<|im_end|>\n<|im_start|>assistant\n": the end of the one, and the
  // opening of the other. Empty if the template rejects a question by itself.
  const std::string& after_user() const { return after_user_; }

  // Whether the template writes the thoughts of an answer after the last question.
  bool writes_thoughts() const { return writes_thoughts_; }

  // Whether the template accepts an answer with a tool call, and leaves the call out.
  bool drops_calls() const { return drops_calls_; }
  // Whether it writes a tool call without its arguments.
  bool drops_arguments() const { return drops_arguments_; }

  // Where the turns of a text end that was rendered without a generation prompt: its end, or where the opening of an
  // answer begins that a template writes whatever add_generation_prompt is.
  std::size_t end_of_turns(std::string_view text) const {
    return text.size() - (text.ends_with(constant_opening_) ? constant_opening_.size() : 0);
  }
  // What of the opening of an answer the template does not write when it is asked for the generation prompt.
  std::string missing_opening() const {
    return generation_prompt_.empty() && constant_opening_.empty() ? opening_ : "";
  }

  // The variable `eos_token`; "" if it is not defined.
  std::string eos_token() const;

  const std::string& source() const { return source_; }
  const std::optional<ToolUse>& tool_use() const { return tool_use_; }
  const std::map<std::string, std::string>& variables() const { return variables_; }
  const std::string& file() const { return file_; }
  std::uint64_t fingerprint() const { return fingerprint_; }

 private:
  void probe();
  void find_opening();
  std::string find_constant_opening(const std::string& after_answer) const;

  Statement program_;
  std::map<std::string, std::string> variables_;
  std::string source_, file_, generation_prompt_, opening_, constant_opening_, after_user_;
  std::uint64_t fingerprint_ = 0;
  bool has_generations_ = false;
  bool writes_thoughts_ = false;
  bool drops_calls_ = false;
  bool drops_arguments_ = false;
  Readable readable_;
  std::optional<ToolUse> tool_use_;
  std::shared_ptr<const ChatTemplate> with_tools_;  // of tool_use_; null: none, or it is rejected
  std::optional<UserError> rejected_;               // why
};

// A built-in template (`chatml`, `llama-3`, ...): the format that the models of its name were trained on.
struct NamedTemplate {
  const char* name;
  std::string source;
  std::map<std::string, std::string> tokens;  // defaults; the tokenizer's own tokens override them
  bool tools = false;                         // whether it writes tools, their calls and results
};
const std::vector<NamedTemplate>& named_templates();
std::string named_templates_with_tools();  // "chatml, qwen-2.5, ..."
bool is_named(const std::string& name);

// Opens the template that a recipe selects. `wanted` is a built-in name, a .jinja file, a tokenizer_config.json, or a
// folder with one of these files. If it is empty, the template is chat_template.jinja or that of tokenizer_config.json
// in the tokenizer's folder, and null if there is none. Folders and tokenizer_config.json may have a second one, named
// tool_use. Adds a problem at `key` and returns null for everything else.
std::shared_ptr<const ChatTemplate> open_chat_template(const std::string& wanted, const std::string& tokenizer,
                                                       const std::string& folder, const std::string& key,
                                                       Problems& problems);

// Files for a checkpoint with this tokenizer that render as the template that `wanted` selects: where its tokens differ
// from those of the tokenizer's tokenizer_config.json, they set them first. None if `wanted` is empty or cannot be
// opened.
struct TemplateFile {
  std::string name, text;
};
std::vector<TemplateFile> as_tokenizers_own(const std::string& wanted, const std::string& tokenizer,
                                            const std::string& folder);

}  // namespace hawser::text::chat
