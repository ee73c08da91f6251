// Kinds of ASCII characters, whatever the locale.
#pragma once

namespace hawser::data {

// A blank, a tab, or an end of a line or page.
constexpr bool is_space(char c) {
  return c == ' ' || (c >= '\t' && c <= '\r');
}

}  // namespace hawser::data
