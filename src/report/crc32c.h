// CRC-32C (Castagnoli, RFC 3720): crc32c("123456789") == 0xE3069283.
#pragma once

#include <cstdint>
#include <string_view>

namespace hawser::report {

std::uint32_t crc32c(std::string_view bytes);

}  // namespace hawser::report
