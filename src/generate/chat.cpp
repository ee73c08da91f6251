#include "generate/chat.h"

#include <algorithm>

#include "base/utf8.h"

namespace hawser::generate {

Chat::Chat(const OpenGeneration& input, Generator& generator, std::string system, text::chat::Value tools)
    : input_(input), generator_(generator), system_(std::move(system)), tools_(std::move(tools)) {
  reset();
}

void Chat::reset() {
  messages_.clear();
  if (!system_.empty()) messages_.push_back(message("system", system_));
}

std::optional<Answer> Chat::send(const std::string& line, const std::function<void(const std::string&)>& on_text,
                                 Problems& problems, const std::string& role) {
  messages_.push_back(message(role, replace_invalid_utf8(line)));
  const auto prompt = input_.encoder->conversation({.messages = messages_, .tools = tools_}, {}, problems);
  const bool fits = prompt && static_cast<std::int64_t>(prompt->ids.size()) <= input_.size.positions;
  if (!fits) {
    if (prompt) {
      problems.add({.what = "the conversation is too long",
                    .expected = cat("at most ", input_.size.positions, " tokens"),
                    .got = cat(prompt->ids.size()),
                    .hint = "/reset, or a larger --context"});
    }
    messages_.pop_back();
    return std::nullopt;
  }
  const std::vector<std::int32_t>& ids = prompt->ids;
  const auto common = std::mismatch(ids.begin(), ids.end(), kept_.begin(), kept_.end()).first - ids.begin();
  // The last token is always computed, because its logits are needed.
  reused_tokens_ = std::min(static_cast<std::size_t>(common), ids.size() - 1);
  prompt_tokens_ = ids.size();
  kept_.clear();  // in case of an exception
  Answer answer =
      generator_.answer(*prompt, reused_tokens_, turns_++,
                        {.token = [&](std::size_t, std::int32_t, const std::string& text) { on_text(text); },
                         .answer = {},
                         .progress = {}});
  kept_ = ids;
  kept_.insert(kept_.end(), answer.ids.begin(), answer.ids.end() - 1);  // the last id was not computed
  messages_.push_back(message("assistant", answer.text));
  return answer;
}

}  // namespace hawser::generate
