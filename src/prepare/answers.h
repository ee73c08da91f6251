// `AnswerEncoder`: encodes conversations and prompt/completion pairs, and labels the answers only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "prepare/jsonl.h"
#include "text/chat/chat_template.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::prepare {

// Fills the ids of the full text, as the tokenizer encodes it, and the labels: the id where the loss is computed, -100
// elsewhere.
//
// A conversation is the output of the chat template; nothing is added. The labels cover the assistant's turns. A turn
// begins after the generation prompt ("<|im_start|>assistant\n") and includes the end-of-turn token: the first special
// token after the message's content, or eos_token if the text continues with it. Tool calls whose end is not known in
// this way, or that the template does not write, are rejected. If the template has {% generation %} blocks, the labels
// cover these instead. Line::not_trained takes messages out.
//
// A prompt and its completion are one text: begin of text, prompt, completion, end of text. The labels cover the
// completion and the end of text.
//
// A token that spans the start or the end of an answer is labeled.
class AnswerEncoder {
 public:
  // `chat_template` may be null; `without` then has the reasons, or is empty if there is simply no template.
  AnswerEncoder(const text::Tokenizer& tokenizer, std::shared_ptr<const text::chat::ChatTemplate> chat_template,
                Problems without);

  // Fills ids and labels of a line that has `chat` or `completion`. Returns false and adds a problem at `place` if the
  // template rejects the line, if a role is unknown, or if no token is labeled.
  bool encode(Line& line, const LinePlace& place, Problems& problems) const;

 private:
  std::vector<text::chat::Range> answers_of(const text::chat::Rendered& rendered, const Line& line,
                                            const std::vector<std::int32_t>& ids) const;

  const text::Tokenizer& tokenizer_;
  std::shared_ptr<const text::chat::ChatTemplate> template_;
  Problems without_;
  text::TextFrame frame_;
};

// Removes repeated problems: an unusable template is reported for every line.
Problems without_repeats(const Problems& problems);

}  // namespace hawser::prepare
