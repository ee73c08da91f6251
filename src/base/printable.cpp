#include "base/printable.h"

#include <array>
#include <cstdio>

#include "base/utf8.h"

namespace hawser {
namespace {

bool is_unsafe(char32_t c) {
  return (c >= 0x80 && c <= 0x9F) || c == 0x061C || c == 0x200E || c == 0x200F || (c >= 0x2028 && c <= 0x202E) ||
         (c >= 0x2066 && c <= 0x2069);
}

std::string code_point(char32_t c) {
  std::array<char, 16> out;
  std::snprintf(out.data(), out.size(), "<U+%04X>", static_cast<unsigned>(c));
  return out.data();
}

}  // namespace

std::string printable(std::string_view text, Newlines newlines) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = utf8_step(text.substr(at));
    const char32_t c = step.character;
    const bool blank = c == '\n' || c == '\r' || c == '\t';
    if (blank && newlines == Newlines::to_spaces) {
      out += ' ';
    } else if (c == '\n' || c == '\t') {
      out += static_cast<char>(c);
    } else if (c < 0x20 || c == 0x7F) {
      out += '^';
      out += static_cast<char>(c ^ 0x40);
    } else if (is_unsafe(c)) {
      out += code_point(c);
    } else {
      append_utf8(c, out);
    }
    at += static_cast<std::size_t>(step.bytes);
  }
  return out;
}

}  // namespace hawser
