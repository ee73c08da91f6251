// `from_base64` and `to_base64`: base64, the encoding of bytes in JSON files.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hawser::text {

// nullopt if `text` is not base64. Padding may be missing.
std::optional<std::string> from_base64(std::string_view text);

// With padding.
std::string to_base64(std::string_view bytes);

}  // namespace hawser::text
