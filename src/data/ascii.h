// Character classes of ASCII, independent of the locale.
#pragma once

namespace hawser::data {

// Space, \t, \n, \v, \f or \r.
constexpr bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

}  // namespace hawser::data
