// UTF-8: validation, repair and iteration. An invalid sequence is the longest prefix of a valid character, at least one
// byte, as in Python's `errors="replace"` and Rust's from_utf8_lossy; surrogates are invalid.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hawser {

struct Utf8Step {
  char32_t character;  // U+FFFD if invalid
  int bytes;           // 1 to 4: length of the character or invalid sequence
  bool valid;
};

// Decodes the character at the start of `text`, which must not be empty.
Utf8Step utf8_step(std::string_view text);

// Byte offset of the first invalid sequence at or after `from`; npos if there is none.
std::size_t find_invalid_utf8(std::string_view text, std::size_t from = 0);

// `text` with every invalid sequence replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

// Whether a text looks like UTF-16 from its first 512 bytes: it has a byte-order mark, or more than half of the bytes
// at even offsets are zero and none at odd offsets, or vice versa.
bool looks_like_utf16(std::string_view text);
inline constexpr const char* kFromUtf16 = "iconv -f utf-16 -t utf-8";

// U+FEFF, with which some programs begin a file; not part of the text.
inline constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
inline void remove_byte_order_mark(std::string& text) {
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
}

void append_utf8(char32_t character, std::string& out);

}  // namespace hawser
