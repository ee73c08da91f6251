// A conversation with a model: each turn goes on from what is kept of the turns before.
//
//   Chat chat(*input, generator, "You are terse.");
//   Problems problems;
//   std::optional<Answer> answer = chat.say("hello", [](const std::string& text) { ... }, problems);
//
// A turn renders the whole conversation with the chat template. Tokens that begin like those whose keys and values are
// kept are not computed again; where a template writes an old turn otherwise than it was answered (one that drops
// thoughts, say), what follows is.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "generate/generate.h"

namespace hawser::generate {

class Chat {
 public:
  // system: "" for none. Both outlive this.
  Chat(const OpenGeneration& input, Generator& generator, std::string system);

  // The answer to a line of the user's; `on_text` hears it as it comes. Adds a problem and returns none where the
  // template rejects the turn or the conversation has no room left; then it is as if it had not been said.
  std::optional<Answer> send(const std::string& line, const std::function<void(const std::string&)>& on_text,
                             Problems& problems);
  // Forgets all that was said, but for the system's text.
  void reset();

  // Of the last turn: tokens of the conversation up to the answer, and how many of them had been computed before.
  std::size_t prompt_tokens() const { return prompt_tokens_; }
  std::size_t reused_tokens() const { return reused_tokens_; }

 private:
  const OpenGeneration& input_;
  Generator& generator_;
  std::string system_;
  data::chat::List messages_;
  std::vector<std::int32_t> kept_;  // the tokens of the first slot
  std::int64_t turns_ = 0;
  std::size_t prompt_tokens_ = 0, reused_tokens_ = 0;
};

}  // namespace hawser::generate
