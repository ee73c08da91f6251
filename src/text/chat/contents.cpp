#include "text/chat/contents.h"

#include "base/cat.h"
#include "io/json.h"
#include "text/chat/from_json.h"

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

// The object that JSON text is; the text itself for any other text.
Value object_of(const Value& text) {
  const auto [json, error] = io::read_exact_json(text.text().bytes);
  return !error && json.is_object() ? from_json(json) : text;
}

// A call with its arguments as an object.
Value with_object(const Value& call) {
  if (!call.is_mapping()) return call;
  Dict changed = call.dict();
  for (auto& [key, value] : changed.items) {
    if (key == "function") value = with_object(value);
    if (key == "arguments" && value.is_text()) value = object_of(value);
  }
  return changed;
}

Dict with_objects(Dict message) {
  for (auto& [key, value] : message.items) {
    if (key == "function_call") value = with_object(value);
    if (key != "tool_calls" || !value.is_list()) continue;
    List calls;
    for (const Value& call : value.list()) calls.push_back(with_object(call));
    value = Value(std::move(calls));
  }
  return message;
}

Value readable_content(const Value& content, std::size_t message, const Readable& readable) {
  if (content.is_list() && !readable.parts) return joined(content.list(), message);
  if (content.is_mapping() && !readable.objects) return to_json(content);
  return content.is_none() || content.is_list() || content.is_mapping() ? Value::not_text(content) : content;
}

}  // namespace

bool has_calls(const Dict& message) {
  const Value *calls = message.find("tool_calls"), *call = message.find("function_call");
  return (calls && calls->truth()) || (call && call->truth());
}

std::vector<ToolCall> calls_of(const Dict& message) {
  std::vector<ToolCall> calls;
  const auto add = [&](const Value& call, bool legacy) {
    if (!call.is_mapping()) return;
    const Value* function = call.dict().find("function");
    const Dict& at = function && function->is_mapping() ? function->dict() : call.dict();
    const Value* name = at.find("name");
    if (name && name->is_text()) calls.push_back({name, at.find("arguments"), legacy});
  };
  if (const Value* several = message.find("tool_calls"); several && several->is_list()) {
    for (const Value& call : several->list()) add(call, false);
  }
  if (const Value* call = message.find("function_call")) add(*call, true);
  return calls;
}

List with_readable_contents(const List& messages, const Readable& readable) {
  List out;
  for (const Value& message : messages) {
    if (!message.is_mapping()) {
      out.push_back(message);
      continue;
    }
    const Value* content = message.dict().find("content");
    if (content && content->is_none() && !has_calls(message.dict())) {
      throw TemplateError(cat("messages[", out.size(), "].content is null; without tool calls it must be text"));
    }
    Dict changed = readable.text_of_arguments ? message.dict() : with_objects(message.dict());
    if (content) changed.set("content", readable_content(*content, out.size(), readable));
    out.emplace_back(std::move(changed));
  }
  return out;
}

}  // namespace hawser::text::chat
