// `Line`, `parse_line`: lines of JSONL. A line has one of:
//
//   text                  a document
//   input_ids             token ids, with optional `labels` (aligned with the ids, shifted later; -100: no loss) and
//                         optional `document_lengths` (their sum is the number of ids; tokens attend within their own);
//                         ids at zeros of an optional `attention_mask` are padding at either end, and are dropped
//   messages              a conversation, with optional `tools`
//   prompt, completion    both texts, or both lists of messages with optional `tools`
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
  std::int64_t number = 0;          // in its file, from 1
  std::optional<std::string> text;  // nullopt: one of the others
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> labels;            // empty: equal to ids
  std::vector<std::int32_t> document_lengths;  // empty: one document

  std::optional<chat::Conversation> chat;
  std::size_t asked = 0;  // number of leading messages that are the prompt; they get no labels
  std::string prompt;
  std::optional<std::string> completion;
};

// Position of a line, for messages, and the upper bound of its ids (0: unknown).
struct LinePlace {
  std::string file;
  std::int64_t number = 1;  // of the line, from 1
  std::int64_t byte = 0;    // offset of the line in the file
  std::int64_t vocab_size = 0;
};

// Parses one line. Adds every problem with its line and byte or key, and returns nullopt if there is any.
std::optional<Line> parse_line(std::string_view line, const LinePlace& place, Problems& problems);

// Whether a line has only white space; such lines are skipped.
bool is_blank(std::string_view line);

// All lines of a small file, for evaluation. Adds a problem for a file without any.
std::vector<Line> read_jsonl(const std::string& path, std::int64_t vocab_size, Problems& problems);

// A text file as one line of text. Adds a problem if it is empty or not UTF-8.
std::vector<Line> read_text_file(const std::string& path, Problems& problems);

}  // namespace hawser::data
