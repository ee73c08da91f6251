#include "prepare/line_names.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/philox.h"
#include "prepare/jsonl.h"

namespace hawser::prepare {
namespace {

using Json = nlohmann::ordered_json;

// Keys of a message. Other names are keys of a line.
constexpr std::array<std::string_view, 14> kKeysOfMessages = {
    "role",      "content", "name",  "tool_calls", "tool_call_id", "reasoning_content", "thinking",
    "reasoning", "weight",  "train", "training",   "loss",         "loss_mask",         "function_call"};

bool is_message_key(std::string_view key) {
  return std::ranges::find(kKeysOfMessages, key) != kKeysOfMessages.end();
}

std::string in_columns(const std::string& name) {
  return "data.columns: " + name;
}

std::string in_roles(const std::string& name) {
  return "data.roles: " + name;
}

void rename(Json& object, const LineNames& names, bool of_message, std::set<std::string>& found) {
  for (const auto& [key, columns] : names.columns) {
    if (is_message_key(key) != of_message) continue;
    std::optional<std::string> first;
    for (const std::string& column : columns) {
      const auto value = object.find(column);
      if (value == object.end() || value->is_null()) continue;
      found.insert(in_columns(column));
      if (!first) first = column;
    }
    if (!first) continue;
    Json value = std::move(object[*first]);
    object.erase(*first);
    object[key] = std::move(value);
  }
}

}  // namespace

std::uint64_t LineNames::fingerprint() const {
  if (empty()) return 0;
  std::uint64_t hash = fnv1a("names");
  for (const auto* map : {&columns, &roles}) {
    hash = fnv1a(map == &roles ? "roles" : "columns", hash);
    for (const auto& [key, names] : *map) {
      hash = fnv1a(key + ":", hash);
      for (const std::string& name : names) hash = fnv1a(name + ",", hash);
    }
  }
  return hash;
}

void LineNames::rename_line(Json& line, std::set<std::string>& found) const {
  rename(line, *this, false, found);
}

void LineNames::rename_message(Json& message, std::set<std::string>& found) const {
  rename(message, *this, true, found);
}

const std::string& LineNames::role(const std::string& name, std::set<std::string>& found) const {
  for (const auto& [role, names] : roles) {
    if (std::ranges::find(names, name) == names.end()) continue;
    found.insert(in_roles(name));
    return role;
  }
  return name;
}

std::set<std::string> LineNames::all() const {
  std::set<std::string> names;
  for (const auto& [key, files] : columns) std::ranges::transform(files, std::inserter(names, names.end()), in_columns);
  for (const auto& [key, files] : roles) std::ranges::transform(files, std::inserter(names, names.end()), in_roles);
  return names;
}

bool LineNames::has(const std::function<bool(std::string_view)>& column, std::string_view key) const {
  if (column(key)) return true;
  const auto found = columns.find(std::string(key));
  return found != columns.end() && std::ranges::any_of(found->second, column);
}

std::vector<std::string_view> LineNames::line_columns() const {
  std::vector<std::string_view> all = line_keys();
  for (const auto& [key, names] : columns) {
    if (!is_message_key(key)) all.insert(all.end(), names.begin(), names.end());
  }
  return all;
}

void check_names(const LineNames& names, Problems& problems) {
  for (const auto& [key, columns] : names.columns) {
    const std::vector<std::string_view>& keys = line_keys();
    if (is_message_key(key) || std::ranges::find(keys, key) != keys.end()) continue;
    problems.add({.what = "no key of a line or a message",
                  .expected = "Hawser's name before the file's: messages, role, content, text, prompt, ...",
                  .got = key,
                  .at = "data.columns"});
  }
}

}  // namespace hawser::prepare
