// Conversations, and prompts with completions, to ids whose labels are the answers alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "data/chat/chat_template.h"
#include "data/jsonl.h"
#include "data/tokenizers/tokenizer.h"

namespace hawser::data {

// Ids of the whole text, as the tokenizer gives them, and labels: the ids where something is to be learned, else -100.
//
// A conversation is what its template makes of it; nothing is added. To be learned are the turns of the assistant: each
// from behind what the template puts there when it asks for an answer ("<|im_start|>assistant\n") up to the end-of-turn
// token, that one included: the first special token behind the message's content, or else eos_token where it follows. A
// template with {% generation %} blocks says itself what is to be learned.
//
// A prompt with its completion is one text: begin of text, the prompt, the completion, end of text. To be learned are
// the completion and the end of text.
//
// A token that has bytes of both sides of a border is learned.
class AnswerEncoder {
 public:
  // `chat_template` may be null; `without` then says why, where that is more than that there is none.
  AnswerEncoder(const Tokenizer& tokenizer, std::shared_ptr<const chat::ChatTemplate> chat_template, Problems without);

  // Fills ids and labels of a line that has `chat` or `completion`. False with a problem added at `place` when the
  // template rejects it, or when nothing in it is to be learned.
  bool encode(Line& line, const LinePlace& place, Problems& problems) const;

 private:
  std::vector<chat::Range> answers_of(const chat::Rendered& rendered, const Line& line,
                                      const std::vector<std::int32_t>& ids) const;

  const Tokenizer& tokenizer_;
  std::shared_ptr<const chat::ChatTemplate> template_;
  Problems without_;
  TextFrame frame_;
};

// Each problem once: a template that cannot be used is in the way of every line.
Problems without_repeats(const Problems& problems);

}  // namespace hawser::data
