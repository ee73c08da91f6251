#include "text/tokenizers/byte_level.h"

#include "base/utf8.h"

namespace hawser::text {

std::optional<std::string> bytes_of_byte_level(std::string_view token) {
  // The highest character is U+0143.
  static constexpr auto kBytes = [] {
    std::array<int, 0x144> bytes{};
    bytes.fill(-1);
    const auto alphabet = byte_level_alphabet();
    for (int byte = 0; byte < 256; ++byte) bytes[alphabet[byte]] = byte;
    return bytes;
  }();
  std::string out;
  out.reserve(token.size());
  while (!token.empty()) {
    const Utf8Step step = utf8_step(token);
    if (!step.valid || step.character >= kBytes.size() || kBytes[step.character] < 0) return std::nullopt;
    out += static_cast<char>(kBytes[step.character]);
    token.remove_prefix(step.bytes);
  }
  return out;
}

}  // namespace hawser::text
