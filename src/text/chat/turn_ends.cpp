#include "text/chat/turn_ends.h"

#include <algorithm>
#include <optional>
#include <string>

namespace hawser::text::chat {
namespace {

Value message_of(const std::string& role, const std::string& content) {
  Dict dict;
  dict.set("role", Value(role));
  dict.set("content", Value(content));
  return dict;
}

// What follows the message of the assistant, up to the contents of the next one; nullopt if the template rejects the
// conversation or does not write the message.
std::optional<std::string> after_answer(const ChatTemplate& chat_template, bool and_more) {
  List messages{message_of("user", "a"), message_of("assistant", "b")};
  if (and_more) messages.push_back(message_of("user", "c"));
  try {
    const Rendered rendered = chat_template.render({.messages = messages});
    if (rendered.contents.size() != messages.size() || !rendered.contents[1]) return std::nullopt;
    const std::size_t begin = rendered.contents[1]->end;
    std::size_t end = rendered.text.size();
    if (and_more && rendered.contents[2] && rendered.contents[2]->begin >= begin) end = rendered.contents[2]->begin;
    if (!and_more) end = std::max(begin, chat_template.end_of_turns(rendered.text));
    return rendered.text.substr(begin, end - begin);
  } catch (const TemplateError&) {
    return std::nullopt;
  }
}

// The first special tokens of a text with none but special tokens between them.
std::vector<std::int32_t> first_special(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<std::int32_t> ids, found;
  tokenizer.encode_conversation(text, ids);
  for (const std::int32_t id : ids) {
    const bool special = tokenizer.marks_turns(id);
    if (special) found.push_back(id);
    if (!special && !found.empty()) break;
  }
  return found;
}

}  // namespace

std::vector<std::int32_t> turn_ends(const ChatTemplate& chat_template, const Tokenizer& tokenizer) {
  const auto last = after_answer(chat_template, false);
  const std::string between = after_answer(chat_template, true).value_or(last.value_or(""));
  if (last) {
    const auto common = std::mismatch(last->begin(), last->end(), between.begin(), between.end()).first - last->begin();
    std::vector<std::int32_t> ends = first_special(tokenizer, last->substr(0, static_cast<std::size_t>(common)));
    if (!ends.empty()) return ends;
    ends = first_special(tokenizer, *last);
    if (!ends.empty()) return {ends.front()};
  }
  // An eos_token that is no special token. A template that rejects the conversation may still write it.
  const std::string eos = chat_template.eos_token();
  const auto id = eos.empty() ? std::nullopt : tokenizer.id_of(eos);
  if (!id) return {};
  const std::size_t text = last ? std::min(last->find_first_not_of(" \n"), last->size()) : 0;
  return !last || last->compare(text, eos.size(), eos) == 0 ? std::vector{*id} : std::vector<std::int32_t>();
}

}  // namespace hawser::text::chat
