#include "prepare/answer_bounds.h"

#include <algorithm>
#include <set>

#include "base/cat.h"

namespace hawser::prepare {
namespace {

using text::chat::Range;
using text::chat::Rendered;

std::size_t common_start(std::string_view a, std::string_view b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

bool is_word(char c) {
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return letter || (c >= '0' && c <= '9') || static_cast<unsigned char>(c) >= 0x80;
}

// The bytes of `text` that equal `prompt`, without a tag or a word of the prompt that the text does not have as a whole:
// of "<html>" after "<think>" none, though both begin with "<".
std::size_t written_part(std::string_view prompt, std::string_view text) {
  const std::size_t same = common_start(prompt, text);
  if (same == 0 || same == prompt.size()) return same;
  const std::size_t tag = prompt.find_last_of("<[", same - 1);
  const std::size_t end = tag == prompt.npos ? prompt.npos : prompt.find_first_of(">] \n", tag);
  if (end != prompt.npos && end >= same && (prompt[end] == '>' || prompt[end] == ']')) return tag;
  std::size_t word = same;
  while (word > 0 && is_word(prompt[same]) && is_word(prompt[word - 1])) --word;
  return word;
}

}  // namespace

std::string role_of(const text::chat::Value& message) {
  const text::chat::Value* role = message.dict().find("role");
  return role && role->is_text() ? role->text().bytes : "";
}

AnswerBounds::AnswerBounds(const text::chat::ChatTemplate& chat_template, const text::chat::Conversation& conversation,
                           const Rendered& rendered, const TokenPlaces& places, const text::Tokenizer& tokenizer)
    : template_(chat_template),
      conversation_(conversation),
      rendered_(rendered),
      places_(places),
      tokenizer_(tokenizer),
      before_(rendered.contents.size()),
      next_(rendered.contents.size()) {
  // Some contents, such as a system message's, are written after those of a later message.
  std::set<std::size_t> ends{0};
  for (std::size_t i = 0; i < before_.size(); ++i) {
    if (!rendered.contents[i]) continue;
    before_[i] = *std::prev(ends.upper_bound(rendered.contents[i]->begin));
    ends.insert(rendered.contents[i]->end);
  }
  std::vector<std::size_t> begins;  // of the messages behind
  for (std::size_t i = next_.size(); i-- > 0;) {
    const auto& content = rendered.contents[i];
    const std::size_t from = content ? content->end : 0;
    while (!begins.empty() && begins.back() < from) begins.pop_back();
    next_[i] = begins.empty() ? rendered.text.size() : begins.back();
    if (content) begins.push_back(content->begin);
  }
}

Range AnswerBounds::of(std::size_t message) {
  const Range& content = *rendered_.contents[message];
  const auto inside = [&](const std::optional<Range>& other) {
    return other && other->begin >= content.begin && other->end <= content.end && other->begin < other->end;
  };
  if (std::any_of(rendered_.contents.begin() + static_cast<std::ptrdiff_t>(message) + 1, rendered_.contents.end(),
                  inside)) {
    throw text::chat::TemplateError(cat("messages[", message, "]: the template writes later messages within it; only ",
                                        "{% generation %} blocks can say what the model writes"));
  }
  return {begin_of(message), end_of(message)};
}

std::size_t AnswerBounds::begin_of(std::size_t message) {
  if (message == 0) return begin_of_first();
  const std::size_t from = before_[message];
  const std::string_view text = std::string_view(rendered_.text).substr(from);
  const bool after_user = role_of(conversation_.messages.list()[message - 1]) == "user";
  const std::string& usual = template_.after_user();
  const bool is_usual = after_user && conversation_.variables.items.empty() && !usual.empty();
  if (is_usual && text.starts_with(usual)) return from + usual.size();
  const std::string* given = text_before(message);
  if (!given) return begin_by_prompt(message);
  const std::optional<std::size_t> opened = opening_end(message);
  if (const auto same = given_start(*given, text, opened.has_value())) return from + *same;
  // What follows the contents may depend on them: look at those before this message.
  const auto own = rest_of_first(message, true);
  const auto same = own ? given_start(*own, text, opened.has_value()) : std::nullopt;
  return same ? from + *same : begin_by_prompt(message);
}

// An answer that begins the conversation: the model is given what the template writes before it, which may be a whole
// system message. That is the text up to the opening, or that which does not depend on the answer.
std::size_t AnswerBounds::begin_of_first() const {
  if (const auto opened = opening_end(0)) return *opened;
  std::size_t begin = rendered_.contents[0]->begin;
  try {
    for (const char* probe : {"Probe", "another"}) {  // texts without a common start
      text::chat::Conversation other = conversation_;
      text::chat::List messages = conversation_.messages.list();
      text::chat::Dict answer;
      answer.set("role", role_of(messages.front()));
      answer.set("content", probe);
      messages.front() = std::move(answer);
      other.messages = std::move(messages);
      begin = std::min(begin, common_start(template_.render(other).text, rendered_.text));
    }
  } catch (const text::chat::TemplateError&) {
    return begin_by_prompt(0);
  }
  // Preceding spaces are part of the first word's token.
  while (begin > 0 && rendered_.text[begin - 1] == ' ') --begin;
  return begin;
}

// The first line of what begins an answer. Not all answers have what may follow it in a generation prompt,
// "<think>\n".
std::string_view AnswerBounds::opening_line() const {
  const std::string_view opening = template_.opening();
  return opening.substr(0, std::min(opening.find('\n'), opening.size() - 1) + 1);
}

// The bytes of `text` that equal what the model is given before an answer; nullopt if they differ before the opening of
// the answer, since a template may end the last message in another way than the others. `opened`: whether the opening
// is in the text; then they may not differ within its first line either, since the template writes more before it.
std::optional<std::size_t> AnswerBounds::given_start(std::string_view given, std::string_view text, bool opened) const {
  const std::string& opening = template_.opening();
  const std::size_t same = written_part(given, text);
  const bool reaches =
      !given.ends_with(opening) || same >= given.size() - opening.size() + (opened ? opening_line().size() : 0);
  return reaches && (same > 0 || given.empty()) ? std::optional(same) : std::nullopt;
}

// The end of the last opening between the contents before a message and its own. A part of the opening counts if its
// first line is there. nullopt if there is none.
std::optional<std::size_t> AnswerBounds::opening_end(std::size_t message) const {
  const std::string& text = rendered_.text;
  const std::size_t until = rendered_.contents[message]->begin;
  const std::string_view line = opening_line();
  std::optional<std::size_t> end;
  if (line.empty()) return end;
  for (std::size_t at = text.find(line, before_[message]); at < until; at = text.find(line, at + 1)) {
    end = at + written_part(template_.opening(), std::string_view(text).substr(at));
  }
  return end;
}

// Where an answer begins whose place in the given text is not known: behind its opening, or with its contents.
std::size_t AnswerBounds::begin_by_prompt(std::size_t message) const {
  if (const auto opened = opening_end(message)) return *opened;
  std::size_t begin = rendered_.contents[message]->begin;
  // Preceding spaces are part of the first word's token.
  while (template_.opening().empty() && begin > before_[message] && rendered_.text[begin - 1] == ' ') --begin;
  return begin;
}

std::size_t AnswerBounds::end_of(std::size_t message) {
  const std::size_t from = rendered_.contents[message]->end;
  const bool last = next_[message] == rendered_.text.size();
  const auto specials = places_.specials(from, last ? template_.end_of_turns(rendered_.text) : next_[message]);
  if (specials.empty()) return end_without_specials(message);
  if (last) return specials.back().end;
  const auto id = [](const TokenPlaces::Special& one) { return one.id; };
  const std::vector<std::int32_t>& usual = specials_after(message);
  const auto same = static_cast<std::size_t>(std::ranges::mismatch(specials, usual, {}, id).in1 - specials.begin());
  if (same > 0) return specials[same - 1].end;
  const auto prompt = specials_of(template_.opening());
  const auto opening = prompt.empty() ? specials.end() : std::ranges::find(specials, prompt.front(), id);
  const bool has_end = opening != specials.end() && opening != specials.begin();
  return has_end ? std::prev(opening)->end : specials.front().end;
}

// For tokenizers whose end of a turn is no special token, and templates without one.
std::size_t AnswerBounds::end_without_specials(std::size_t message) const {
  const std::string& text = rendered_.text;
  const std::size_t from = rendered_.contents[message]->end;
  const std::string eos = template_.eos_token();
  if (text::chat::has_calls(conversation_.messages.list()[message].dict())) {
    // Their last text is not the end of the call: quotes and brackets, numbers and names follow.
    const std::size_t at = eos.empty() ? text.npos : text.find(eos, from);
    if (at >= next_[message]) {
      throw text::chat::TemplateError(cat("messages[", message, "]: where its tool calls end is not known: no special ",
                                          "token of the tokenizer follows, and no {% generation %} block holds them"));
    }
    return at + eos.size();
  }
  const std::size_t at = std::min(text.find_first_not_of(" \n", from), text.size());
  return !eos.empty() && text.compare(at, eos.size(), eos) == 0 ? at + eos.size() : from;
}

// What the model is given before an answer, from the end of the contents before it. Null if the template rejects the
// messages before the answer by themselves.
const std::string* AnswerBounds::text_before(std::size_t message) {
  const std::string role = role_of(conversation_.messages.list()[message - 1]);
  const auto [found, added] = text_before_.try_emplace(role);
  if (added) found->second = rest_of_first(message, true);
  return found->second ? &*found->second : nullptr;
}

// The special tokens between the contents of an answer of this kind and the next turn.
const std::vector<std::int32_t>& AnswerBounds::specials_after(std::size_t message) {
  const text::chat::List& messages = conversation_.messages.list();
  const auto has_calls = [&](std::size_t i) { return text::chat::has_calls(messages[i].dict()); };
  const bool calls = has_calls(message);
  const auto [found, added] = specials_after_.try_emplace(calls);
  if (!added) return found->second;
  const std::size_t last = messages.size() - 1;
  if (rendered_.contents[last] && role_of(messages[last]) == role_of(messages[message]) && has_calls(last) == calls) {
    for (const auto& one : places_.specials(rendered_.contents[last]->end, template_.end_of_turns(rendered_.text))) {
      found->second.push_back(one.id);
    }
  } else if (const auto rest = rest_of_first(message + 1, false)) {
    found->second = specials_of(*rest);
  }
  return found->second;
}

std::vector<std::int32_t> AnswerBounds::specials_of(std::string_view text) const {
  std::vector<std::int32_t> ids;
  tokenizer_.encode_conversation(text, ids);
  std::erase_if(ids, [&](std::int32_t id) { return !tokenizer_.marks_turns(id); });
  return ids;
}

// Renders the first messages; returns the text after their contents, or nullopt if the template rejects them.
std::optional<std::string> AnswerBounds::rest_of_first(std::size_t count, bool prompt) const {
  try {
    const Rendered first = template_.render(text::chat::first_messages(conversation_, count), prompt);
    std::size_t end = 0;
    for (const auto& content : first.contents) end = std::max(end, content ? content->end : 0);
    const std::size_t until = prompt ? first.text.size() : std::max(end, template_.end_of_turns(first.text));
    std::string rest = first.text.substr(end, until - end);
    if (prompt) rest += template_.missing_opening();
    return rest;
  } catch (const text::chat::TemplateError&) {
    return std::nullopt;
  }
}

}  // namespace hawser::prepare
