// Contents of messages that are no text: lists of parts and null. Internal to chat/.
//
// A template that takes contents to be texts writes other contents as Python prints them: `[{'type': 'text', ...}]`,
// `None`. Here such contents become text, or the conversation is rejected.
#pragma once

#include "text/chat/value.h"

namespace hawser::text::chat {

// The messages with contents that a template can write.
//
// A list of parts stays if `reads_parts`; otherwise it becomes the texts of its parts, joined with line feeds (as vLLM
// does for templates that take text). null stays in a message with tool calls. Both are `Value::not_text`.
// Throws TemplateError, which names the message, for null without tool calls, and for a part that is no text if
// !reads_parts.
List with_readable_contents(const List& messages, bool reads_parts);

}  // namespace hawser::text::chat
