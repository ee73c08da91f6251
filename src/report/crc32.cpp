#include "report/crc32.h"

#include <array>

namespace hawser::report {
namespace {

using CrcTable = std::array<std::uint32_t, 256>;

// `polynomial`: lowest bit first.
constexpr CrcTable make_table(std::uint32_t polynomial) {
  CrcTable table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? polynomial : 0);
    table[byte] = crc;
  }
  return table;
}
constexpr CrcTable kIeee = make_table(0xEDB88320);        // 0x04C11DB7
constexpr CrcTable kCastagnoli = make_table(0x82F63B78);  // 0x1EDC6F41

std::uint32_t crc_of(const CrcTable& table, std::string_view bytes) {
  std::uint32_t crc = ~std::uint32_t{0};
  for (const char c : bytes) crc = table[(crc ^ static_cast<std::uint8_t>(c)) & 0xFF] ^ (crc >> 8);
  return ~crc;
}

}  // namespace

std::uint32_t crc32(std::string_view bytes) {
  return crc_of(kIeee, bytes);
}

std::uint32_t crc32c(std::string_view bytes) {
  return crc_of(kCastagnoli, bytes);
}

}  // namespace hawser::report
