// `append_json_text`: a text as a JSON string.
#pragma once

#include <string>
#include <string_view>

namespace hawser::prepare {

// Appends `text`, which must be UTF-8, in quotes: a"b is "a\"b". Only what JSON requires is escaped, so that a line of
// JSON has no line break.
inline void append_json_text(std::string_view text, std::string& out) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    const auto code = static_cast<unsigned char>(c);
    if (code >= 0x20 && c != '"' && c != '\\') continue;
    out.append(text.substr(done, at - done));
    done = at + 1;
    out += '\\';
    switch (c) {
      case '"':
      case '\\':
        out += c;
        break;
      case '\n':
        out += 'n';
        break;
      case '\r':
        out += 'r';
        break;
      case '\t':
        out += 't';
        break;
      case '\b':
        out += 'b';
        break;
      case '\f':
        out += 'f';
        break;
      default:
        out += "u00";
        out += kHex[code >> 4];
        out += kHex[code & 15];
    }
  }
  out.append(text.substr(done));
  out += '"';
}

}  // namespace hawser::prepare
