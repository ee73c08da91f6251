// `Line`, `parse_line`: lines of JSONL. A line has one of these forms; of several, choose_form's is read:
//
//   text                  a document
//   input_ids             token ids, with optional `labels` (aligned with the ids, shifted later; -100: no loss) and
//                         optional `document_lengths` (their sum is the number of ids; tokens attend within their own),
//                         which TRL calls `seq_lengths`;
//                         ids at zeros of an optional `attention_mask` are padding at either end, and are dropped
//   messages              a conversation, with optional `system` and `tools`
//   conversations         the same under ShareGPT's key
//   prompt, completion    both texts, or both lists of messages with optional `system` and `tools`
//   instruction, output   Alpaca: a conversation of one question, to which an optional `input` is appended, and its
//                         answer; with optional `system`. The keys have synonyms: question; response and answer;
//                         context (not with question); system_prompt
//
// A message is {"role", "content"} or ShareGPT's {"from", "value"}; a conversation has one kind. The role may be one of
// the names that data sets use for user and assistant. An assistant's message whose `weight`, `train`, `training`,
// `loss` or `loss_mask` is 0 or false has no labels. Its thoughts are `reasoning_content`, `thinking` or `reasoning`.
// A conversation may also have `functions` (tools without their frame), `documents`, and `chat_template_kwargs`, the
// variables of the template. Lists and objects, and the arguments of a call, may be JSON text. A key whose value is
// null counts as missing, at every depth of a message but within the arguments of a call.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "prepare/line_names.h"
#include "text/chat/chat_template.h"

namespace hawser::prepare {

struct Line {
  std::int64_t number = 0;          // in its file, from 1
  const char* unit = "line";        // as in LinePlace
  std::optional<std::string> text;  // nullopt: one of the others
  std::vector<std::int32_t> ids;
  std::vector<std::int32_t> labels;            // empty: equal to ids
  std::vector<std::int32_t> document_lengths;  // empty: one document

  std::optional<text::chat::Conversation> chat;
  std::size_t asked = 0;          // number of leading messages that are the prompt; they get no labels
  std::vector<bool> not_trained;  // per message: whether its loss is switched off; empty: none
  // Keys that nothing reads, though their names speak of a mask, a loss, a tool or the like:
  // "messages.training_detail".
  std::set<std::string> unread;
  std::set<std::string> names;  // that the line has of LineNames::all
  bool asked_time = false;      // the chat template wrote a date
  bool no_turn_end = false;     // no token of the tokenizer ends an answer of the conversation
  std::string prompt;
  std::optional<std::string> completion;
};

// Position of a line, for messages, and the upper bound of its ids (0: unknown).
struct LinePlace {
  std::string file;
  std::int64_t number = 1;  // of the line, from 1
  std::int64_t byte = 0;    // offset of the line in the file
  std::int64_t vocab_size = 0;
  const char* unit = "line";         // see Lines of open_lines.h
  const LineNames* names = nullptr;  // of keys and roles in the file; null: those of this header

  // "line 12", or "line 12, KEY".
  std::string at(std::string_view key = "") const { return cat(unit, " ", number, key.empty() ? "" : ", ", key); }
  Problem problem(std::string what, std::string expected, std::string got, const std::string& key,
                  std::string hint = "") const {
    return {.file = file,
            .what = std::move(what),
            .expected = std::move(expected),
            .got = std::move(got),
            .at = at(key),
            .hint = std::move(hint)};
  }
};

// The form that a line with these keys is read as. Data sets often have a second one that was made from the first, so
// the first of this list that has all its keys counts: input_ids, as in TRL; messages or conversations; prompt and
// completion; a question and its answer; text.
//
//   instruction, input, output, text    {"instruction + output"}    text is the same with words around it
//   prompt, messages                    {"messages"}                the prompt is the first of the messages
//   question, output, answer            {"question + output", "question + answer"}    which of the answers?
//
// Several: forms that count equally, of which a line must have one. None: no form has all its keys.
std::vector<std::string> choose_form(const std::function<bool(std::string_view)>& has);

// All keys of a line that parse_line or a reader of prompts may look at: the columns to read of a file that has
// columns. A new key of a line is added here, too, or Parquet files do not have it.
const std::vector<std::string_view>& line_keys();

// Whether a key that is not read should be named: it speaks of what is trained on, or of what the model is shown.
bool could_matter(std::string_view key);

// Parses one line. Adds every problem with its line and byte or key, and returns nullopt if there is any.
std::optional<Line> parse_line(std::string_view line, const LinePlace& place, Problems& problems);

// Whether a line has only white space; such lines are skipped.
bool is_blank(std::string_view line);

// All documents of a small file of any format of open_lines.h, for evaluation. Adds a problem for a file without any.
std::vector<Line> read_jsonl(const std::string& path, std::int64_t vocab_size, Problems& problems,
                             const LineNames& names = {});

// A text file as one line of text. Adds a problem if it is empty or not UTF-8.
std::vector<Line> read_text_file(const std::string& path, Problems& problems);

}  // namespace hawser::prepare
