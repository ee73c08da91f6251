#include "io/json_text.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "io/json.h"

namespace hawser::io {
namespace {

// A member of an object: `"key": value` is bytes [begin, end) of the text, the value bytes [value, end).
struct Member {
  std::string key;
  std::size_t begin = 0, value = 0, end = 0;
};

std::size_t after_spaces(const std::string& text, std::size_t at) {
  return std::min(text.find_first_not_of(" \t\r\n", at), text.size());
}

std::size_t after_string(const std::string& text, std::size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return at + 1;
}

std::size_t after_value(const std::string& text, std::size_t at) {
  if (text[at] == '"') return after_string(text, at);
  if (text[at] != '{' && text[at] != '[') return std::min(text.find_first_of(",}] \t\r\n", at), text.size());
  for (int open = 0; at < text.size();) {
    const char c = text[at];
    if (c == '"') {
      at = after_string(text, at);
      continue;
    }
    ++at;
    if (c == '{' || c == '[') ++open;
    if ((c == '}' || c == ']') && --open == 0) break;
  }
  return at;
}

std::vector<Member> members_of(const std::string& text) {
  std::vector<Member> members;
  for (std::size_t at = after_spaces(text, text.find('{') + 1); at < text.size() && text[at] == '"';) {
    Member member{.begin = at};
    const std::size_t key_end = after_string(text, at);
    member.key = parse_own_json(std::string_view(text).substr(at, key_end - at)).get<std::string>();
    member.value = after_spaces(text, after_spaces(text, key_end) + 1);  // after the colon
    member.end = after_value(text, member.value);
    at = after_spaces(text, member.end);
    members.push_back(std::move(member));
    if (at < text.size() && text[at] == ',') at = after_spaces(text, at + 1);
  }
  return members;
}

std::optional<std::size_t> index_of(const std::vector<Member>& members, const std::string& key) {
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (members[i].key == key) return i;
  }
  return std::nullopt;
}

}  // namespace

std::string without_key(const std::string& object, const std::string& key) {
  const std::vector<Member> members = members_of(object);
  const auto found = index_of(members, key);
  if (!found) return object;
  const std::size_t i = *found;
  std::size_t begin = members[i].begin, end = members[i].end;
  if (i + 1 < members.size()) {
    end = members[i + 1].begin;
  } else if (i > 0) {
    begin = members[i - 1].end;
  }
  return object.substr(0, begin) + object.substr(end);
}

std::string with_value(const std::string& object, const std::string& key, const std::string& value) {
  const std::vector<Member> members = members_of(object);
  if (const auto found = index_of(members, key)) {
    return object.substr(0, members[*found].value) + value + object.substr(members[*found].end);
  }
  const std::string added = Json(key).dump() + ": " + value;
  const std::size_t open = object.find('{') + 1;
  if (members.empty()) return object.substr(0, open) + added + object.substr(after_spaces(object, open));
  // What separates it from the key before is what separates that one from the bracket or the comma before it.
  const Member& last = members.back();
  const std::size_t before = members.size() > 1 ? members[members.size() - 2].end : open;
  std::string separator = object.substr(before, last.begin - before);
  std::erase(separator, ',');
  if (members.size() == 1 && separator.empty()) separator = " ";
  return object.substr(0, last.end) + "," + separator + added + object.substr(last.end);
}

}  // namespace hawser::io
