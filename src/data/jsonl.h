// Lines of JSONL: `text`; or `input_ids` with optional `labels` (aligned with the ids, shifted later; -100 ignored) and
// optional `document_lengths` (they add up to the line; tokens attend within theirs); or `messages`, a conversation,
// with optional `tools`; or `prompt` and `completion`, both texts or both lists of messages.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/chat/chat_template.h"

namespace hawser::data {

struct Line {
  std::int64_t number = 0;          // in its file
  std::optional<std::string> text;  // else one of the others
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> labels;            // empty: the ids
  std::vector<std::int32_t> document_lengths;  // empty: one document

  std::optional<chat::Conversation> chat;
  std::size_t asked = 0;  // how many of its messages are the prompt: nothing in them is to be learned
  std::string prompt;
  std::optional<std::string> completion;
};

// Where a line stands, for messages, and what its ids must be below (0: unknown).
struct LinePlace {
  std::string file;
  std::int64_t number = 1;  // the first line is 1
  std::int64_t byte = 0;    // of the line's start in the file
  std::int64_t vocab_size = 0;
};

// Reads one line. Everything wrong with it goes to `problems` with its line and byte or key; then there is no result.
std::optional<Line> parse_line(std::string_view line, const LinePlace& place, Problems& problems);

// Whether a line holds nothing but white space: such lines are passed over.
bool is_blank(std::string_view line);

// All lines of a small file (evaluation). Adds a problem for a file without any.
std::vector<Line> read_jsonl(const std::string& path, std::int64_t vocab_size, Problems& problems);

// A text file as one line of text. Adds a problem for one that is empty or not UTF-8.
std::vector<Line> read_text_file(const std::string& path, Problems& problems);

}  // namespace hawser::data
