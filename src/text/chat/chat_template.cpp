#include "text/chat/chat_template.h"

#include <algorithm>

#include "base/philox.h"
#include "text/chat/contents.h"

namespace hawser::text::chat {

ChatTemplate::ChatTemplate(const std::string& source, std::map<std::string, std::string> variables, std::string file,
                           std::optional<ToolUse> tool_use)
    : variables_(std::move(variables)), source_(source), file_(std::move(file)), tool_use_(std::move(tool_use)) {
  try {
    program_ = parse_program(source, has_generations_);
  } catch (const TemplateError& error) {
    throw UserError({.file = file_,
                     .what = cat("chat template: ", error.what()),
                     .at = cat("template line ", error.line),
                     .hint = "a template within the subset of Jinja in docs/data.md as data.chat_template"});
  }
  fingerprint_ = fnv1a(source);
  for (const auto& [name, text] : variables_) fingerprint_ = fnv1a(cat(name, "=", text, "\n"), fingerprint_);

  const auto user = [](Value content) {
    Dict message;
    message.items = {{"role", "user"}, {"content", std::move(content)}};
    return Conversation{List{message}, {}};
  };
  try {
    // Its result decides, not the source: templates test the type of contents in many ways.
    Dict part;
    part.items = {{"type", "text"}, {"text", "a part"}};
    reads_parts_ = true;
    reads_parts_ = render(user(List{part})).text.find("a part") != std::string::npos;
  } catch (const TemplateError&) {
    reads_parts_ = false;
  }
  const Conversation probe = user("x");
  try {
    const std::string without = render(probe, false).text, with = render(probe, true).text;
    if (with.starts_with(without)) generation_prompt_ = with.substr(without.size());
  } catch (const TemplateError&) {
    // The template rejects the probe: generation_prompt_ stays empty.
  }
  if (!tool_use_) return;
  fingerprint_ = fnv1a(tool_use_->source, fingerprint_);
  try {
    with_tools_ = std::make_shared<const ChatTemplate>(tool_use_->source, variables_, tool_use_->file);
  } catch (const UserError& error) {
    rejected_ = error;
  }
}

const ChatTemplate& ChatTemplate::used_for(const Conversation& conversation) const {
  if (!tool_use_ || conversation.tools.is_undefined()) return *this;
  if (rejected_) throw UserError(*rejected_);
  return *with_tools_;
}

std::string ChatTemplate::eos_token() const {
  const auto found = variables_.find("eos_token");
  return found == variables_.end() ? "" : found->second;
}

Rendered ChatTemplate::render(const Conversation& conversation, bool add_generation_prompt) const {
  Context context;
  set_functions(context);
  for (const auto& [name, text] : variables_) context.set(name, text);
  List messages;
  for (const Value& message : with_readable_contents(iterate(conversation.messages), reads_parts_)) {
    messages.push_back(marked(message, static_cast<int>(messages.size())));
  }
  Rendered out{.contents = std::vector<std::optional<Range>>(messages.size()), .has_generations = has_generations_};
  context.set("messages", std::move(messages));
  // As in transformers, absent tools are none, not undefined.
  context.set("tools", conversation.tools.is_undefined() ? Value(None{}) : conversation.tools);
  context.set("documents", None{});
  context.set("add_generation_prompt", add_generation_prompt);
  program_(context);
  Text text = context.take_output();
  for (const Mark& mark : text.marks) {
    auto& range = out.contents[static_cast<std::size_t>(mark.message)];
    if (!range) range = Range{mark.begin, mark.end};
    range->begin = std::min(range->begin, mark.begin);
    range->end = std::max(range->end, mark.end);
  }
  for (const auto& [begin, end] : context.generations) out.generations.push_back({begin, end});
  out.text = std::move(text.bytes);
  return out;
}

}  // namespace hawser::text::chat
