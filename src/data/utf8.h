// UTF-8: checking, repairing and walking. A bad sequence is what Python's `errors="replace"` (and Rust's
// from_utf8_lossy) calls one: the longest prefix of a valid character, at least one byte; surrogates are bad.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hawser::data {

struct Utf8Step {
  char32_t character;  // U+FFFD when bad
  int bytes;           // 1 to 4: how far to go
  bool valid;
};

// The character at the start of `text`, which must not be empty.
Utf8Step utf8_step(std::string_view text);

// Byte offset of the first bad sequence at or after `from`; npos when there is none.
std::size_t find_invalid_utf8(std::string_view text, std::size_t from = 0);

// `text` with every bad sequence replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

// Whether the beginning of a text is UTF-16: by its byte-order mark, or since every second byte is zero.
bool looks_like_utf16(std::string_view text);
inline constexpr const char* kFromUtf16 = "iconv -f utf-16 -t utf-8";

void append_utf8(char32_t character, std::string& out);

}  // namespace hawser::data
