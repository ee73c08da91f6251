#include "prepare/answers.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <span>

#include "prepare/token_file.h"

namespace hawser::prepare {
namespace {

using Ids = std::vector<std::int32_t>;
using text::chat::Range;

// Maps byte ranges of a text to the tokens that cover them.
class TokenPlaces {
 public:
  // `conversation`: the ids are those of encode_conversation.
  TokenPlaces(std::string_view text, const Ids& ids, const text::Tokenizer& tokenizer, bool conversation)
      : text_(text), ids_(ids), tokenizer_(tokenizer), conversation_(conversation) {
    // If decoding each token reproduces the text, token ends are known exactly.
    std::size_t at = 0;
    for (const std::int32_t id : ids) {
      const std::string bytes = tokenizer.decode_bytes(std::span(&id, 1));
      if (text.substr(at, bytes.size()) != bytes) break;
      ends_.push_back(at += bytes.size());
    }
    exact_ = ends_.size() == ids.size() && at == text.size();
  }

  // First and end index of the tokens that cover the range.
  std::pair<std::size_t, std::size_t> of(const Range& range) const {
    if (range.begin >= range.end) return {0, 0};
    if (exact_) {
      const auto holding = [&](std::size_t byte) {
        return static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), byte) - ends_.begin());
      };
      return {holding(range.begin), holding(range.end - 1) + 1};
    }
    // Otherwise encode the text before each bound; its common prefix with the full ids locates the bound.
    const auto [begin, ignored] = before(range.begin);
    const auto [end, whole] = before(range.end);
    return {begin, whole ? end : std::min(end + 1, ids_.size())};
  }

  // End of the first token within [from, until) that satisfies `wanted`.
  template <class Wanted>
  std::optional<std::size_t> end_of_first(std::size_t from, std::size_t until, Wanted wanted) const {
    if (!exact_) {
      // Special tokens appear literally in the text.
      std::size_t token = before(from).first;
      for (; token < ids_.size() && from < until; ++token) {
        const std::string bytes = tokenizer_.decode_bytes(std::span(&ids_[token], 1));
        if (!wanted(ids_[token])) continue;
        const std::size_t found = text_.find(bytes, from);
        if (found == text_.npos || found >= until) return std::nullopt;
        return found + bytes.size();
      }
      return std::nullopt;
    }
    auto token = static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), from) - ends_.begin());
    for (; token < ids_.size() && (token == 0 ? 0 : ends_[token - 1]) < until; ++token) {
      if (wanted(ids_[token])) return ends_[token];
    }
    return std::nullopt;
  }

 private:
  Ids encoded(std::string_view text) const {
    Ids ids;
    if (conversation_) {
      tokenizer_.encode_conversation(text, ids);
    } else {
      tokenizer_.encode(text, ids, false);
    }
    return ids;
  }

  // The number of tokens that end before a byte, and whether the next token begins there.
  std::pair<std::size_t, bool> before(std::size_t byte) const {
    const Ids start = encoded(text_.substr(0, byte));
    const auto same = static_cast<std::size_t>(
        std::mismatch(start.begin(), start.end(), ids_.begin(), ids_.end()).first - start.begin());
    if (same == start.size() && same > 0 && continues(byte, start)) return {same - 1, false};
    if (same == start.size()) return {same, true};
    return with_text_of(start, same);
  }

  // The same where the last tokens of `start`, the ids before a byte, are others than in the full text: `same` are not.
  std::pair<std::size_t, bool> with_text_of(const Ids& start, std::size_t same) const {
    const std::size_t from = same > 0 ? same - 1 : 0;  // a space may be dropped at the beginning
    const std::string all = tokenizer_.decode_bytes(std::span(start).subspan(from));
    std::string text = tokenizer_.decode_bytes(std::span(start).subspan(from, same - from));
    for (; same < ids_.size() && text != all; ++same) {
      std::string longer = tokenizer_.decode_bytes(std::span(ids_).subspan(from, same + 1 - from));
      if (longer.size() <= text.size() || !all.starts_with(longer)) break;
      text = std::move(longer);
    }
    return {same, text == all};
  }

  // True if the last token of `start`, the ids before a byte, covers the next character too: an unknown token
  // represents any part of its word, and a space several of them.
  bool continues(std::size_t byte, const Ids& start) const {
    if (byte >= text_.size()) return false;
    constexpr std::string_view kSpaces = " \t\n\r";
    if (kSpaces.find(text_[byte]) != kSpaces.npos) {
      // A space that the tokenizer drops belongs to no token. One of several that become one token belongs to it.
      const std::size_t word = text_.substr(0, byte).find_last_not_of(kSpaces) + 1;
      if (word == byte || encoded(text_.substr(0, word)).size() >= start.size()) return false;
    }
    std::size_t next = byte + 1;
    while (next < text_.size() && (static_cast<unsigned char>(text_[next]) & 0xc0) == 0x80) ++next;
    return encoded(text_.substr(0, next)) == start;
  }

  std::string_view text_;
  const Ids& ids_;
  const text::Tokenizer& tokenizer_;
  bool conversation_ = false;
  std::vector<std::size_t> ends_;
  bool exact_ = false;
};

Ids labels_of(const Ids& ids, const std::vector<Range>& answers, const TokenPlaces& places) {
  Ids labels(ids.size(), kIgnoredLabel);
  for (const Range& answer : answers) {
    const auto [begin, end] = places.of(answer);
    for (std::size_t i = begin; i < end; ++i) labels[i] = ids[i];
  }
  return labels;
}

// Returns the end of the end-of-turn text, for tokenizers without a special token for it; `from` if it does not follow.
std::size_t end_of_turn(const std::string& text, std::size_t from, const std::string& eos_token) {
  const std::size_t at = std::min(text.find_first_not_of(" \n", from), text.size());
  return !eos_token.empty() && text.compare(at, eos_token.size(), eos_token) == 0 ? at + eos_token.size() : from;
}

std::string role_of(const text::chat::Value& message) {
  const text::chat::Value* role = message.dict().find("role");
  return role && role->is_text() ? role->text().bytes : "";
}

constexpr std::array kRoles = {"system", "user", "assistant", "tool", "developer", "function", "ipython"};

// The first role that is neither a usual one nor named by the template; "" if there is none. Most templates would print
// any role as it is.
std::string unknown_role(const text::chat::List& messages, const std::string& chat_template) {
  for (const text::chat::Value& message : messages) {
    const std::string role = role_of(message);
    const auto named = [&](char quote) { return chat_template.find(quote + role + quote) != std::string::npos; };
    if (std::ranges::find(kRoles, role) == kRoles.end() && !named('\'') && !named('"')) return role;
  }
  return "";
}

// Start of the next message's contents after `content`, or the end of the text.
std::size_t next_contents(const text::chat::Rendered& rendered, std::size_t message, const Range& content) {
  for (std::size_t j = message + 1; j < rendered.contents.size(); ++j) {
    if (rendered.contents[j] && rendered.contents[j]->begin >= content.end) return rendered.contents[j]->begin;
  }
  return rendered.text.size();
}

// Names of the functions that a message calls.
std::vector<std::string> called_by(const text::chat::Dict& message) {
  std::vector<std::string> names;
  const auto add = [&](const text::chat::Value& call) {
    if (!call.is_mapping()) return;
    const text::chat::Value* function = call.dict().find("function");
    const text::chat::Dict& at = function && function->is_mapping() ? function->dict() : call.dict();
    if (const auto* name = at.find("name"); name && name->is_text()) names.push_back(name->text().bytes);
  };
  if (const auto* calls = message.find("tool_calls"); calls && calls->is_list()) {
    for (const text::chat::Value& call : calls->list()) add(call);
  }
  if (const auto* call = message.find("function_call")) add(*call);
  return names;
}

// What of the messages is nowhere in the rendered conversation: "messages[0] (system)"; "" if there is nothing. Some
// templates leave out what they have no place for, and the model would not learn what the user gave.
std::string not_written(const text::chat::List& messages, const text::chat::Rendered& rendered) {
  std::size_t before = 0;  // end of the contents so far
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const text::chat::Value* content = messages[i].dict().find("content");
    const auto& written = rendered.contents[i];
    const bool blank =
        !content || !content->is_text() || content->text().bytes.find_first_not_of(" \t\r\n") == std::string::npos;
    if (!blank && !written) return cat("messages[", i, "] (", role_of(messages[i]), ")");
    const std::size_t end = written ? next_contents(rendered, i, *written) : before;
    const std::string_view turn = std::string_view(rendered.text).substr(before, end - std::min(before, end));
    for (const std::string& name : called_by(messages[i].dict())) {
      if (turn.find(name) == turn.npos) return cat("the tool calls of messages[", i, "]");
    }
    if (written) before = std::max(before, written->end);
  }
  return "";
}

}  // namespace

Problems without_repeats(const Problems& problems) {
  Problems once;
  std::set<std::string> seen;
  for (const Problem& problem : problems.all()) {
    if (seen.insert(problem.line()).second) once.add(problem);
  }
  return once;
}

AnswerEncoder::AnswerEncoder(const text::Tokenizer& tokenizer,
                             std::shared_ptr<const text::chat::ChatTemplate> chat_template, Problems without)
    : tokenizer_(tokenizer),
      template_(std::move(chat_template)),
      without_(std::move(without)),
      frame_(tokenizer.frame()) {}

bool AnswerEncoder::encode(Line& line, const LinePlace& place, Problems& problems) const {
  const auto reject = [&](std::string what, std::string hint = "") {
    problems.add({.file = place.file, .what = std::move(what), .at = place.at(), .hint = std::move(hint)});
    return false;
  };
  if (line.completion) {
    const std::string text = line.prompt + *line.completion;
    Ids ids;
    tokenizer_.encode(text, ids, false);
    line.labels = labels_of(ids, {{line.prompt.size(), text.size()}}, TokenPlaces(text, ids, tokenizer_, false));
    Ids end = frame_.after;
    const Ids& last = end.empty() ? ids : end;
    if (const auto eos = tokenizer_.eos(); eos && (last.empty() || last.back() != *eos)) end.push_back(*eos);
    line.labels.insert(line.labels.begin(), frame_.before.size(), kIgnoredLabel);
    line.labels.insert(line.labels.end(), end.begin(), end.end());
    line.ids = frame_.before;
    line.ids.insert(line.ids.end(), ids.begin(), ids.end());
    line.ids.insert(line.ids.end(), end.begin(), end.end());
    return true;
  }
  if (!template_) {
    if (without_.empty()) return reject("messages need a chat template", "data.chat_template: chatml, or another name");
    problems.add(without_);
    return false;
  }
  const text::chat::ChatTemplate* used = nullptr;
  try {
    used = &template_->used_for(*line.chat);
  } catch (const UserError& error) {
    problems.add_lines(error.what());
    return false;
  }
  if (const std::string role = unknown_role(line.chat->messages.list(), used->source()); !role.empty()) {
    problems.add({.file = place.file,
                  .what = "unknown role",
                  .expected =
                      "system, user (human), assistant (gpt, bot, model, chatbot), tool, or a role that the chat "
                      "template names",
                  .got = role,
                  .at = place.at()});
    return false;
  }
  try {
    const text::chat::Rendered rendered = used->render(*line.chat);
    if (const std::string left_out = not_written(line.chat->messages.list(), rendered); !left_out.empty()) {
      return reject(cat("the chat template does not write ", left_out),
                    "conversations without it, or another data.chat_template");
    }
    tokenizer_.encode_conversation(rendered.text, line.ids);
    const std::vector<Range> answers = answers_of(rendered, line, line.ids);
    line.labels = labels_of(line.ids, answers, TokenPlaces(rendered.text, line.ids, tokenizer_, true));
  } catch (const text::chat::TemplateError& error) {
    return reject(cat("chat template ", used->file(),
                      error.line > 0 ? cat(", line ", error.line, ": ") : std::string(": "), error.what()));
  }
  if (std::ranges::all_of(line.labels, [](std::int32_t label) { return label == kIgnoredLabel; })) {
    const bool untrained = std::ranges::find(line.not_trained, true) != line.not_trained.end();
    return reject(untrained ? "no target tokens: no assistant turn with a weight"
                            : "no target tokens: the rendered conversation has no assistant turn");
  }
  return true;
}

std::vector<Range> AnswerEncoder::answers_of(const text::chat::Rendered& rendered, const Line& line,
                                             const Ids& ids) const {
  const std::string& text = rendered.text;
  std::size_t asked_until = 0;  // end of the prompt's messages, in bytes
  for (std::size_t i = 0; i < line.asked && i < rendered.contents.size(); ++i) {
    if (rendered.contents[i]) asked_until = std::max(asked_until, rendered.contents[i]->end);
  }
  const auto not_trained = [&](std::size_t i) { return i < line.not_trained.size() && line.not_trained[i]; };
  std::vector<Range> answers;
  if (rendered.has_generations) {
    for (const Range& range : rendered.generations) {
      bool trained = range.begin >= asked_until;
      for (std::size_t i = 0; i < rendered.contents.size(); ++i) {
        const auto& content = rendered.contents[i];
        if (content && content->begin >= range.begin && content->end <= range.end && not_trained(i)) trained = false;
      }
      if (trained) answers.push_back(range);
    }
    return answers;
  }
  const text::chat::List& messages = line.chat->messages.list();
  const TokenPlaces places(text, ids, tokenizer_, true);
  const std::string& prompt = template_->used_for(*line.chat).generation_prompt();
  const auto is_special = [&](std::int32_t id) {
    const std::span<const std::int32_t> one(&id, 1);
    return tokenizer_.decode_bytes(one, true).empty() && !tokenizer_.decode_bytes(one, false).empty();
  };
  std::size_t before = 0;  // end of the contents so far
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto& content = rendered.contents[i];
    if (!content) continue;
    const std::size_t floor = std::exchange(before, std::max(before, content->end));
    if (i < line.asked || not_trained(i) || role_of(messages[i]) != "assistant") continue;
    Range answer = *content;
    if (prompt.empty()) {
      // Preceding spaces are part of the first word's token.
      while (answer.begin > floor && text[answer.begin - 1] == ' ') --answer.begin;
    } else if (content->begin >= prompt.size()) {
      const std::size_t found = text.rfind(prompt, content->begin - prompt.size());
      if (found != text.npos && found >= floor) answer.begin = found + prompt.size();
    }
    const std::size_t until = next_contents(rendered, i, *content);
    if (const auto special = places.end_of_first(content->end, until, is_special)) {
      answer.end = *special;
    } else if (text::chat::has_calls(messages[i].dict())) {
      // Their last text is not the end of the call: quotes and brackets, numbers and names follow.
      const std::string& eos = template_->eos_token();
      const std::size_t at = eos.empty() ? text.npos : text.find(eos, content->end);
      if (at >= until) {
        throw text::chat::TemplateError(
            cat("messages[", i, "]: where its tool calls end is not known: no special ",
                "token of the tokenizer follows, and no {% generation %} block holds them"));
      }
      answer.end = at + eos.size();
    } else {
      answer.end = end_of_turn(text, content->end, template_->eos_token());
    }
    answers.push_back(answer);
  }
  return answers;
}

}  // namespace hawser::prepare
