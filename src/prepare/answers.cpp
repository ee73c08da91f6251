#include "prepare/answers.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <span>

#include "prepare/answer_bounds.h"
#include "prepare/token_file.h"
#include "prepare/token_places.h"
#include "text/chat/texts.h"
#include "text/chat/turn_ends.h"
#include "text/tokenizers/framed_text.h"

namespace hawser::prepare {
namespace {

using Ids = std::vector<std::int32_t>;
using text::chat::Range;

Ids labels_of(const Ids& ids, const std::vector<Range>& answers, const TokenPlaces& places) {
  Ids labels(ids.size(), kIgnoredLabel);
  for (const Range& answer : answers) {
    const auto [begin, end] = places.of(answer);
    for (std::size_t i = begin; i < end; ++i) labels[i] = ids[i];
  }
  return labels;
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

Problem unknown_role_problem(const std::string& role) {
  return {
      .what = "unknown role",
      .expected =
          "system, user (human), assistant (gpt, bot, model, chatbot), tool, or a role that the chat template names",
      .got = role};
}

// Start of the next message's contents after `content`, or the end of the text.
std::size_t next_contents(const text::chat::Rendered& rendered, std::size_t message, const Range& content) {
  for (std::size_t j = message + 1; j < rendered.contents.size(); ++j) {
    if (rendered.contents[j] && rendered.contents[j]->begin >= content.end) return rendered.contents[j]->begin;
  }
  return rendered.text.size();
}

// The thoughts of a message, without white space around them; "" if it has none.
std::string thoughts_of(const text::chat::Dict& message) {
  const text::chat::Value* thoughts = message.find("reasoning_content");
  if (!thoughts || !thoughts->is_text()) return "";
  return text::chat::strip(thoughts->text(), nullptr, true, true).bytes;
}

// What of the conversation is nowhere in its rendered text: "messages[0] (system)".
struct LeftOut {
  std::string part;
  std::string hint = "conversations without it, or another data.chat_template";
};

LeftOut left_out_calls(std::size_t message, bool legacy, const char* of = "") {
  if (legacy) {
    return {
        .part = cat(of, "the function_call of messages[", message, "]"),
        .hint = "tool_calls in place of function_call, and the role tool in place of function (docs/data.md, Tools)"};
  }
  return {.part = cat(of, "the tool calls of messages[", message, "]"),
          .hint = cat("a data.chat_template that writes them: ", text::chat::named_templates_with_tools())};
}

// A copy of a message in which the name of one of its calls is another.
text::chat::Value with_call_named(const text::chat::Dict& message, std::size_t call, const std::string& name) {
  std::size_t next = 0;  // of calls_of
  const auto renamed = [&](const text::chat::Value& one) -> text::chat::Value {
    if (!one.is_mapping()) return one;
    text::chat::Dict out = one.dict();
    const text::chat::Value* function = out.find("function");
    const bool framed = function && function->is_mapping();
    text::chat::Dict inner = framed ? function->dict() : out;
    const text::chat::Value* own = inner.find("name");
    if (!own || !own->is_text() || next++ != call) return one;
    inner.set("name", name);
    if (!framed) return inner;
    out.set("function", inner);
    return out;
  };
  text::chat::Dict out = message;
  if (const auto* calls = message.find("tool_calls"); calls && calls->is_list()) {
    text::chat::List list;
    for (const text::chat::Value& one : calls->list()) list.push_back(renamed(one));
    out.set("tool_calls", std::move(list));
  }
  if (const auto* one = message.find("function_call")) out.set("function_call", renamed(*one));
  return out;
}

// Whether a call is written in a way that hides where its name comes from, such as Python's form of the whole call:
// another name then is in the text.
bool is_written(const text::chat::ChatTemplate& used, const text::chat::Conversation& conversation, std::size_t message,
                std::size_t call) {
  const std::string probe = "hawser_probe_of_a_call";
  text::chat::Conversation changed = conversation;
  text::chat::List messages = conversation.messages.list();
  messages[message] = with_call_named(messages[message].dict(), call, probe);
  changed.messages = std::move(messages);
  try {
    return used.render(changed).text.find(probe) != std::string::npos;
  } catch (const text::chat::TemplateError&) {
    return false;
  }
}

// The calls of a message that are nowhere in the bytes [from, until) of the text.
std::optional<LeftOut> calls_not_written(const text::chat::ChatTemplate& used, const Line& line,
                                         const text::chat::Rendered& rendered, std::size_t message, const Range& turn) {
  const auto calls = text::chat::calls_of(line.chat->messages.list()[message].dict());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const auto& at = rendered.calls[message][i];
    const bool written = at ? *at >= turn.begin && *at < turn.end : is_written(used, *line.chat, message, i);
    if (!written) return left_out_calls(message, calls[i].legacy);
    const text::chat::Value* arguments = calls[i].arguments;
    const bool empty = !arguments || !arguments->truth() || (arguments->is_text() && arguments->text().bytes == "{}");
    if (!empty && used.drops_arguments()) return left_out_calls(message, calls[i].legacy, "the arguments of ");
  }
  return std::nullopt;
}

// Some templates leave out what they have no place for, and the model would not learn what the user gave. Thoughts
// before the last question are left out on purpose by templates that write those after it.
std::optional<LeftOut> not_written(const text::chat::ChatTemplate& used, const Line& line,
                                   const text::chat::Rendered& rendered) {
  const text::chat::List& messages = line.chat->messages.list();
  std::size_t question = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    if (role_of(messages[i]) == "user") question = i;
  }
  // A system message may stand late, before the last question: the turns between do not begin behind it.
  std::vector<std::size_t> later(messages.size() + 1, rendered.text.size());  // where contents from message i on begin
  for (std::size_t i = messages.size(); i-- > 0;) {
    later[i] = rendered.contents[i] ? std::min(later[i + 1], rendered.contents[i]->begin) : later[i + 1];
  }
  std::size_t before = 0;  // end of the contents so far
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const text::chat::Value* content = messages[i].dict().find("content");
    const auto& written = rendered.contents[i];
    const bool blank =
        !content || !content->is_text() || content->text().bytes.find_first_not_of(" \t\r\n") == std::string::npos;
    if (!blank && !rendered.has_content[i]) {
      return LeftOut{cat(written ? "the content of " : "", "messages[", i, "] (", role_of(messages[i]), ")")};
    }
    const std::size_t end = written ? next_contents(rendered, i, *written) : before;
    const std::string_view turn = std::string_view(rendered.text).substr(before, end - std::min(before, end));
    if (auto left_out = calls_not_written(used, line, rendered, i, {before, end})) return left_out;
    const bool trained = i >= line.asked && !(i < line.not_trained.size() && line.not_trained[i]);
    if (trained && (i > question || !used.writes_thoughts())) {
      const std::string thoughts = thoughts_of(messages[i].dict());
      if (turn.find(thoughts) == turn.npos) {
        return LeftOut{cat("the thoughts (reasoning_content) of messages[", i, "]")};
      }
    }
    if (written && written->end <= later[i + 1]) before = std::max(before, written->end);
  }
  return std::nullopt;
}

// The tool calls that a template leaves out, whatever else it rejects; nullopt if it writes them, or there are none.
std::optional<LeftOut> dropped_calls(const text::chat::ChatTemplate& used, const text::chat::List& messages) {
  const auto calls = [](const text::chat::Value& message) { return text::chat::has_calls(message.dict()); };
  const auto first = std::ranges::find_if(messages, calls);
  if (first == messages.end() || !used.drops_calls()) return std::nullopt;
  const auto of_first = text::chat::calls_of(first->dict());
  const bool legacy = !of_first.empty() && of_first.front().legacy;
  return left_out_calls(static_cast<std::size_t>(first - messages.begin()), legacy);
}

// Corrects the keys that nothing reads: those that the template's source names are read, and parts of the conversation
// that it does not name are not.
void note_unread(const std::string& source, Line& line) {
  const auto named = [&](std::string_view key) { return source.find(key) != source.npos; };
  std::erase_if(line.unread, [&](const std::string& key) {
    const std::size_t dot = key.rfind('.');
    return dot != key.npos && named(std::string_view(key).substr(dot + 1));
  });
  if (!line.chat->tools.is_undefined() && !named("tools")) {
    line.unread.insert(cat("tools (the chat template writes none; data.chat_template: ",
                           text::chat::named_templates_with_tools(), " write them)"));
  }
  if (!line.chat->documents.is_undefined() && !named("documents")) line.unread.insert("documents");
  for (const auto& [key, value] : line.chat->variables.items) {
    if (!named(key)) line.unread.insert(cat("chat_template_kwargs.", key));
  }
}

}  // namespace

std::optional<Problem> left_out_problem(const text::chat::ChatTemplate& used,
                                        const text::chat::Conversation& conversation,
                                        const text::chat::Rendered& rendered) {
  const text::chat::List& messages = conversation.messages.list();
  if (const std::string role = unknown_role(messages, used.source()); !role.empty()) return unknown_role_problem(role);
  const Line line{.chat = conversation, .not_trained = std::vector<bool>(messages.size(), true)};
  const auto left_out = not_written(used, line, rendered);
  if (!left_out) return std::nullopt;
  return Problem{.what = cat("the chat template does not write ", left_out->part), .hint = left_out->hint};
}

Problems without_repeats(const Problems& problems) {
  Problems once;
  std::set<std::string> seen;
  for (const Problem& problem : problems.all()) {
    if (seen.insert(problem.line()).second) once.add(problem);
  }
  return once;
}

AnswerEncoder::AnswerEncoder(const text::Tokenizer& tokenizer,
                             std::shared_ptr<const text::chat::ChatTemplate> chat_template, Problems without,
                             std::tm time)
    : tokenizer_(tokenizer),
      template_(std::move(chat_template)),
      without_(std::move(without)),
      time_(time),
      frame_(tokenizer.frame()),
      no_turn_end_(template_ && text::chat::turn_ends(*template_, tokenizer).empty()) {}

bool AnswerEncoder::encode(Line& line, const LinePlace& place, Problems& problems) const {
  if (line.completion) {
    encode_completion(line);
    return true;
  }
  if (!template_) {
    if (without_.empty()) {
      problems.add({.file = place.file,
                    .what = "messages need a chat template",
                    .at = place.at(),
                    .hint = "data.chat_template: chatml, or another name"});
    }
    problems.add(without_);
    return false;
  }
  try {
    return encode_chat(template_->used_for(*line.chat), line, place, problems);
  } catch (const UserError& error) {
    problems.add_lines(error.what());
    return false;
  }
}

void AnswerEncoder::encode_completion(Line& line) const {
  const std::string text = line.prompt + *line.completion;
  Ids ids;
  tokenizer_.encode(text, ids, false);
  line.labels = labels_of(ids, {{line.prompt.size(), text.size()}}, TokenPlaces(text, ids, tokenizer_, false));
  auto [begin, end] = text::missing_frame(frame_, ids);
  const Ids& last = end.empty() ? ids : end;
  if (const auto eos = tokenizer_.eos(); eos && (last.empty() || last.back() != *eos)) end.push_back(*eos);
  line.labels.insert(line.labels.begin(), begin.size(), kIgnoredLabel);
  line.labels.insert(line.labels.end(), end.begin(), end.end());
  line.ids = std::move(begin);
  line.ids.insert(line.ids.end(), ids.begin(), ids.end());
  line.ids.insert(line.ids.end(), end.begin(), end.end());
}

bool AnswerEncoder::encode_chat(const text::chat::ChatTemplate& used, Line& line, const LinePlace& place,
                                Problems& problems) const {
  const auto reject = [&](std::string what, std::string hint = "") {
    problems.add({.file = place.file, .what = std::move(what), .at = place.at(), .hint = std::move(hint)});
    return false;
  };
  if (const std::string role = unknown_role(line.chat->messages.list(), used.source()); !role.empty()) {
    Problem problem = unknown_role_problem(role);
    problem.file = place.file;
    problem.at = place.at();
    problems.add(problem);
    return false;
  }
  const auto reject_left_out = [&](const LeftOut& left_out) {
    return reject(cat("the chat template does not write ", left_out.part), left_out.hint);
  };
  note_unread(used.source(), line);
  line.chat->time = time_;
  try {
    const text::chat::Rendered rendered = used.render(*line.chat);
    if (const auto left_out = not_written(used, line, rendered)) return reject_left_out(*left_out);
    tokenizer_.encode_conversation(rendered.text, line.ids);
    const TokenPlaces places(rendered.text, line.ids, tokenizer_, true);
    const std::vector<Range> answers = answers_of(used, rendered, line, places);
    line.labels = labels_of(line.ids, answers, places);
    line.asked_time = rendered.asked_time;
    // Of a turn without an end of its own, as in GLM-4, the begin of the next one is the end.
    line.no_turn_end = no_turn_end_ && std::ranges::none_of(answers, [&](const Range& answer) {
                         const std::size_t end = places.of(answer).second;
                         return end > 0 && tokenizer_.marks_turns(line.ids[end - 1]);
                       });
  } catch (const text::chat::TemplateError& error) {
    if (const auto left_out = dropped_calls(used, line.chat->messages.list())) return reject_left_out(*left_out);
    return reject(cat("chat template ", used.file(),
                      error.line > 0 ? cat(", line ", error.line, ": ") : std::string(": "), error.what()));
  }
  if (std::ranges::all_of(line.labels, [](std::int32_t label) { return label == kIgnoredLabel; })) {
    const bool untrained = std::ranges::find(line.not_trained, true) != line.not_trained.end();
    return reject(untrained ? "no target tokens: no assistant turn with a weight"
                            : "no target tokens: the rendered conversation has no assistant turn");
  }
  return true;
}

std::vector<Range> AnswerEncoder::answers_of(const text::chat::ChatTemplate& used, const text::chat::Rendered& rendered,
                                             const Line& line, const TokenPlaces& places) const {
  std::size_t asked_until = 0;
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
  AnswerBounds bounds(used, *line.chat, rendered, places, tokenizer_);
  for (std::size_t i = line.asked; i < messages.size(); ++i) {
    if (rendered.contents[i] && !not_trained(i) && role_of(messages[i]) == "assistant") answers.push_back(bounds.of(i));
  }
  return answers;
}

}  // namespace hawser::prepare
