// Limits the nesting depth of JSON before it is parsed: parsers and later code recurse over it.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace hawser {

// Offset at which more than `levels` brackets are open for the first time. Unspecified if the text is not JSON.
inline std::optional<std::size_t> deeper_than(std::string_view json, int levels) {
  int depth = 0;
  bool quoted = false;
  for (std::size_t at = 0; at < json.size(); ++at) {
    const char c = json[at];
    if (quoted) {
      if (c == '\\') ++at;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > levels) return at;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return std::nullopt;
}

}  // namespace hawser
