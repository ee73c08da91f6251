// How deep JSON nests, before a parser builds it: what comes after goes through it recursively.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace hawser {

// Where the text first opens more than `levels` brackets at a time. Text that is no JSON may be answered in any way.
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
