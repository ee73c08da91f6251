// CRC-32 of zlib (IEEE 802.3) and CRC-32C (Castagnoli, RFC 3720). Of "123456789": 0xCBF43926 and 0xE3069283.
#pragma once

#include <cstdint>
#include <string_view>

namespace hawser::report {

std::uint32_t crc32(std::string_view bytes);
std::uint32_t crc32c(std::string_view bytes);

}  // namespace hawser::report
