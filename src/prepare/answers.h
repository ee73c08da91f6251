// `AnswerEncoder`: encodes conversations and prompt/completion pairs, and labels the answers only.
#pragma once

#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "prepare/jsonl.h"
#include "prepare/token_places.h"
#include "text/chat/chat_template.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::prepare {

// Fills the ids of the full text, as the tokenizer encodes it, and the labels: the id where the loss is computed, -100
// elsewhere.
//
// A conversation is the output of the chat template; nothing is added. The labels cover the assistant's turns, as the
// model writes them (answer_bounds.h): from where the text stops to equal what the model is given, to the last special
// or other added token before the next turn. If the template has {% generation %} blocks, the labels cover these
// instead. Line::not_trained takes messages out. What the template does not write of a conversation is rejected.
//
// A prompt and its completion are one text: begin of text, prompt, completion, end of text. The labels cover the
// completion and the end of text. A prompt that has the begin of text already gets no second one.
//
// A token that spans the start or the end of an answer is labeled.
class AnswerEncoder {
 public:
  // `chat_template` may be null; `without` then has the reasons, or is empty if there is simply no template. `time`:
  // what strftime_now writes.
  AnswerEncoder(const text::Tokenizer& tokenizer, std::shared_ptr<const text::chat::ChatTemplate> chat_template,
                Problems without, std::tm time = text::chat::kTemplateDate);

  // Fills ids and labels of a line that has `chat` or `completion`. Returns false and adds a problem at `place` if the
  // template rejects the line, if a role is unknown, or if no token is labeled.
  bool encode(Line& line, const LinePlace& place, Problems& problems) const;

 private:
  void encode_completion(Line& line) const;
  bool encode_chat(const text::chat::ChatTemplate& used, Line& line, const LinePlace& place, Problems& problems) const;
  std::vector<text::chat::Range> answers_of(const text::chat::ChatTemplate& used, const text::chat::Rendered& rendered,
                                            const Line& line, const TokenPlaces& places) const;

  const text::Tokenizer& tokenizer_;
  std::shared_ptr<const text::chat::ChatTemplate> template_;
  Problems without_;
  std::tm time_;
  text::TextFrame frame_;
  bool no_turn_end_;
};

// The problem of a conversation with an unknown role, or of which the template leaves out a content or a tool call;
// without file and place. nullopt: it has none. `rendered` is the conversation by the template.
std::optional<Problem> left_out_problem(const text::chat::ChatTemplate& used,
                                        const text::chat::Conversation& conversation,
                                        const text::chat::Rendered& rendered);

// Removes repeated problems: an unusable template is reported for every line.
Problems without_repeats(const Problems& problems);

}  // namespace hawser::prepare
