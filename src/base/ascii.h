// Character classes of ASCII, independent of the locale.
#pragma once

#include <string>
#include <string_view>

namespace hawser {

// Space, \t, \n, \v, \f or \r.
constexpr bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

// The letters A to Z in lower case.
inline std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
  }
  return lower;
}

}  // namespace hawser
