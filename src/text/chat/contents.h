// Contents and arguments of messages that a template may not be able to write. Internal to chat/.
//
// A template that takes contents to be texts writes other contents as Python prints them: `[{'type': 'text', ...}]`,
// `None`. One that takes the arguments of a call to be an object writes their JSON text in quotes. Here they become
// what the template can write, or the conversation is rejected.
#pragma once

#include <vector>

#include "text/chat/value.h"

namespace hawser::text::chat {

// What a template writes as it is.
struct Readable {
  bool parts = false;             // contents that are a list of parts
  bool objects = false;           // contents of tools that are an object
  bool text_of_arguments = true;  // arguments of calls that are JSON text
};

// The messages with contents and arguments that a template can write.
//
// A list of parts that it does not write becomes the texts of its parts, joined with line feeds (as vLLM does for
// templates that take text); an object becomes its JSON text; the JSON text of arguments becomes an object, if it is
// one. null stays in a message with tool calls. A list, an object and null are `Value::not_text`.
// Throws TemplateError, which names the message, for null without tool calls, and for a part that is no text where
// parts are joined.
List with_readable_contents(const List& messages, const Readable& readable);

// Whether a message calls tools.
bool has_calls(const Dict& message);

// A call of a message, which may have a frame: {"type": "function", "function": {"name": ..., "arguments": ...}}.
struct ToolCall {
  const Value* name = nullptr;       // a text
  const Value* arguments = nullptr;  // null: none
  bool legacy = false;               // whether it is `function_call`, not one of `tool_calls`
};

// The calls of a message that have a name, in order. The pointers are into the message.
std::vector<ToolCall> calls_of(const Dict& message);

}  // namespace hawser::text::chat
