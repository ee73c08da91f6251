// Byte-level alphabet of GPT-2 and later models: each of the 256 bytes is written as one printable character, so that
// a vocabulary can be stored as text ("Ġthe" is " the").
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace hawser::text {

// Character of each byte: the same code point if it is printable in Latin-1, else U+0100 and up in order.
constexpr std::array<char32_t, 256> byte_level_alphabet() {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
    characters[byte] = printable ? byte : next++;
  }
  return characters;
}

// "Ġthe" -> " the"; nullopt if a character is not in the alphabet.
std::optional<std::string> bytes_of_byte_level(std::string_view token);

}  // namespace hawser::text
