#include "base/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace hawser {
namespace {

constexpr Utf8Step bad(int bytes) {
  return {0xFFFD, bytes, false};
}

}  // namespace

Utf8Step utf8_step(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  if (lead < 0x80) return {lead, 1, true};
  if (lead < 0xC2 || lead > 0xF4) return bad(1);
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and values above U+10FFFF.
  unsigned low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  char32_t character = lead & (0x7Fu >> length);
  for (int i = 1; i < length; ++i) {
    if (static_cast<std::size_t>(i) >= text.size() || byte(i) < low || byte(i) > high) return bad(i);
    character = character << 6 | (byte(i) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {character, length, true};
}

std::size_t find_invalid_utf8(std::string_view text, std::size_t from) {
  std::size_t at = from;
  while (at < text.size()) {
    // Eight ASCII bytes at a time.
    while (at + 8 <= text.size()) {
      std::uint64_t word;
      std::memcpy(&word, text.data() + at, 8);
      if (word & 0x8080808080808080u) break;
      at += 8;
    }
    if (at == text.size()) break;
    const Utf8Step step = utf8_step(text.substr(at));
    if (!step.valid) return at;
    at += step.bytes;
  }
  return std::string_view::npos;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  std::size_t done = 0;
  for (std::size_t at = find_invalid_utf8(text); at != std::string_view::npos; at = find_invalid_utf8(text, done)) {
    out.append(text.substr(done, at - done));
    out += "\xEF\xBF\xBD";
    done = at + utf8_step(text.substr(at)).bytes;
  }
  out.append(text.substr(done));
  return out;
}

bool looks_like_utf16(std::string_view text) {
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) return true;
  constexpr std::size_t kLook = 512, kMin = 8;
  const std::size_t size = std::min(text.size(), kLook) / 2 * 2;
  if (size < kMin) return false;
  std::size_t zeros[2] = {0, 0};
  for (std::size_t i = 0; i < size; ++i) zeros[i % 2] += text[i] == '\0';
  // Mostly Latin text has zero high bytes: at even or at odd offsets only.
  return std::max(zeros[0], zeros[1]) * 4 > size && std::min(zeros[0], zeros[1]) == 0;
}

void append_utf8(char32_t character, std::string& out) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (character < 0x80) return put(character);
  if (character < 0x800) {
    put(0xC0 | character >> 6);
  } else {
    if (character < 0x10000) {
      put(0xE0 | character >> 12);
    } else {
      put(0xF0 | character >> 18);
      put(0x80 | (character >> 12 & 0x3F));
    }
    put(0x80 | (character >> 6 & 0x3F));
  }
  put(0x80 | (character & 0x3F));
}

}  // namespace hawser
