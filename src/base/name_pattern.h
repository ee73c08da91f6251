// Entries of a list that name modules: names, such as down_proj, or regular expressions (ECMAScript).
#pragma once

#include <algorithm>
#include <cctype>
#include <optional>
#include <regex>
#include <string>

namespace hawser {

// A character that names of modules do not have makes it one.
inline bool is_pattern(const std::string& text) {
  return std::ranges::any_of(text, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_' && c != '.' && c != '-';
  });
}

// nullopt: it has a mistake.
inline std::optional<std::regex> compiled_pattern(const std::string& text) {
  try {
    return std::regex(text, std::regex::ECMAScript);
  } catch (const std::regex_error&) {
    return std::nullopt;
  }
}

}  // namespace hawser
