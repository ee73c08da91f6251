// The byte-level alphabet of GPT-2 and all after it: each of the 256 bytes written as one printable character, so that
// a vocabulary can be kept as text ("Ġthe" is " the").
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace hawser::data {

// Character of each byte: itself where Latin-1 prints it, else U+0100 and up in order.
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

// "Ġthe" -> " the"; nullopt when a character is not of the alphabet.
std::optional<std::string> bytes_of_byte_level(std::string_view token);

}  // namespace hawser::data
