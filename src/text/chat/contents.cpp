#include "text/chat/contents.h"

#include "base/cat.h"

namespace hawser::text::chat {
namespace {

// The text of a part: a text, or {"type": "text", "text": ...} with any other keys.
const Text* text_of(const Value& part) {
  if (part.is_text()) return &part.text();
  if (!part.is_mapping()) return nullptr;
  const Value *type = part.dict().find("type"), *text = part.dict().find("text");
  const bool other = type && !(type->is_text() && type->text().bytes == "text");
  return !other && text && text->is_text() ? &text->text() : nullptr;
}

std::string shown_type(const Value& part) {
  const Value* type = part.is_mapping() ? part.dict().find("type") : nullptr;
  return type && type->is_text() ? cat("of type ", type->text().bytes) : cat("that is a ", part.type_name());
}

Value joined(const List& parts, std::size_t message) {
  Text out;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Text* text = text_of(parts[i]);
    if (!text) {
      throw TemplateError(cat("messages[", message, "].content[", i, "]: a part ", shown_type(parts[i]),
                              "; the template takes text only"));
    }
    if (i > 0) out.append({"\n", {}});
    out.append(*text);
  }
  return out;
}

}  // namespace

bool has_calls(const Dict& message) {
  const Value *calls = message.find("tool_calls"), *call = message.find("function_call");
  return (calls && calls->truth()) || (call && call->truth());
}

List with_readable_contents(const List& messages, bool reads_parts) {
  List out;
  for (const Value& message : messages) {
    const Value* content = message.is_mapping() ? message.dict().find("content") : nullptr;
    if (!content || (!content->is_none() && !content->is_list())) {
      out.push_back(message);
      continue;
    }
    if (content->is_none() && !has_calls(message.dict())) {
      throw TemplateError(cat("messages[", out.size(), "].content is null; without tool calls it must be text"));
    }
    Dict changed = message.dict();
    const bool join = content->is_list() && !reads_parts;
    changed.set("content", join ? joined(content->list(), out.size()) : Value::not_text(*content));
    out.emplace_back(std::move(changed));
  }
  return out;
}

}  // namespace hawser::text::chat
