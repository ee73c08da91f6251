// `from_json`: converts JSON to a value of a template. Slow to compile: include it in sources only.
#pragma once

#include <nlohmann/json.hpp>

#include "text/chat/value.h"

namespace hawser::text::chat {

// Throws TemplateError for JSON nested more than 100 levels deep. Integers beyond 64 bits keep their digits if
// io::read_exact_json read them.
inline Value from_json(const nlohmann::ordered_json& json, int depth = 0) {
  if (depth > 100) throw TemplateError("nested too deeply");
  if (json.is_null()) return None{};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_unsigned() && json.get<std::uint64_t>() >> 63 != 0) {
    return LargeInteger{std::to_string(json.get<std::uint64_t>())};
  }
  if (json.is_binary()) return LargeInteger{{json.get_binary().begin(), json.get_binary().end()}};
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    List list;
    for (const auto& item : json) list.push_back(from_json(item, depth + 1));
    return list;
  }
  Dict dict;
  for (const auto& [key, item] : json.items()) dict.items.emplace_back(key, from_json(item, depth + 1));
  return dict;
}

}  // namespace hawser::text::chat
