// `AnswerBounds`: which bytes of a rendered conversation an assistant's message is, as the model writes it.
//
//   <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n
//                                                         ^^^^^^^^^^^^^^^^
//
// An answer begins where the text stops to equal what the model is given: the messages before it, rendered with the
// generation prompt. A prompt that ends in "<think>\n", before an answer without thoughts, ends before "<think>", also
// if the answer is "<html>". With no message before it, the model is given what the template writes up to the opening
// of the answer.
//
// It ends with the last special token, or other token that marks turns, before the next turn: that of
// "</tool_call><|im_end|>\n<|im_start|>user" is <|im_end|>. What a turn ends with is seen at the last message, or at
// the messages up to this one, rendered without those that follow. A template may end the last turn in another way
// (gpt-oss: <|return|>, and <|end|> between turns): then the turn ends before the first special token of the generation
// prompt; and where a turn has no end of its own (GLM-4: <|user|> is what the model stops at), with the first special
// token. Without special tokens it ends with the template's eos_token, if that follows, or with the message's contents.
//
// Renders a few first parts of the conversation, one for each role before an answer and each kind of answer, so the
// time is linear in the messages. Internal to prepare.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "prepare/token_places.h"
#include "text/chat/chat_template.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::prepare {

class AnswerBounds {
 public:
  // Keeps references to all; `rendered` is `conversation` by `chat_template`, `places` are the tokens of its text.
  AnswerBounds(const text::chat::ChatTemplate& chat_template, const text::chat::Conversation& conversation,
               const text::chat::Rendered& rendered, const TokenPlaces& places, const text::Tokenizer& tokenizer);

  // The bytes of a message that the template writes. TemplateError if its tool calls have no end that can be found.
  text::chat::Range of(std::size_t message);

 private:
  std::size_t begin_of(std::size_t message);
  std::size_t begin_of_first() const;
  std::string_view opening_line() const;
  std::optional<std::size_t> given_start(std::string_view given, std::string_view text, bool opened) const;
  std::optional<std::size_t> opening_end(std::size_t message) const;
  std::size_t begin_by_prompt(std::size_t message) const;
  std::size_t end_of(std::size_t message);
  std::size_t end_without_specials(std::size_t message) const;

  const std::string* text_before(std::size_t message);
  const std::vector<std::int32_t>& specials_after(std::size_t message);
  std::vector<std::int32_t> specials_of(std::string_view text) const;
  std::optional<std::string> rest_of_first(std::size_t count, bool prompt) const;

  const text::chat::ChatTemplate& template_;
  const text::chat::Conversation& conversation_;
  const text::chat::Rendered& rendered_;
  const TokenPlaces& places_;
  const text::Tokenizer& tokenizer_;
  std::vector<std::size_t> before_;  // by message: the end of the contents before it
  std::vector<std::size_t> next_;    // by message: the begin of the contents after it, or the end of the text
  // What follows the contents before an answer, up to it, by the role before; nullopt: the template rejects the part.
  std::map<std::string, std::optional<std::string>> text_before_;
  // The special tokens that end an answer, by whether it has tool calls.
  std::map<bool, std::vector<std::int32_t>> specials_after_;
};

// The role of a message; "" if it has none.
std::string role_of(const text::chat::Value& message);

}  // namespace hawser::prepare
