// `Chat`: a conversation with a model that reuses the KV cache of earlier turns.
//
//   Chat chat(*input, generator, "You are terse.");
//   Problems problems;
//   std::optional<Answer> answer = chat.send("hello", [](const std::string& text) { ... }, problems);
//   answer = chat.send(R"({"in_stock": 3})", ..., problems, "tool");  // the result of a tool that the answer called
//
// Each turn renders the complete conversation with the chat template. The prefix that equals the tokens in the KV cache
// is not computed again. If a template renders an earlier turn differently from the generated answer (one that drops
// thoughts, for example), the tokens after the difference are computed again.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "generate/generate.h"

namespace hawser::generate {

class Chat {
 public:
  // `system`: "" for none. `tools`: what the model may call, a list as templates take it; undefined: none. `input` and
  // `generator` outlive this.
  Chat(const OpenGeneration& input, Generator& generator, std::string system, text::chat::Value tools = {});

  // The answer to a line of the user, or of another role. `on_text` receives the text as it is generated. Adds a
  // problem and returns nullopt if the template rejects the turn or the conversation is too long; the conversation is
  // then unchanged.
  std::optional<Answer> send(const std::string& line, const std::function<void(const std::string&)>& on_text,
                             Problems& problems, const std::string& role = "user");
  // Clears the conversation except for the system message.
  void reset();

  // Of the last turn: tokens of the prompt, and how many of them were reused from the KV cache.
  std::size_t prompt_tokens() const { return prompt_tokens_; }
  std::size_t reused_tokens() const { return reused_tokens_; }

 private:
  const OpenGeneration& input_;
  Generator& generator_;
  std::string system_;
  text::chat::Value tools_;
  text::chat::List messages_;
  std::vector<std::int32_t> kept_;  // tokens in the KV cache of the first slot
  std::int64_t turns_ = 0;
  std::size_t prompt_tokens_ = 0, reused_tokens_ = 0;
};

}  // namespace hawser::generate
