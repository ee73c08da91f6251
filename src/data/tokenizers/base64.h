// Base64, as JSON files carry bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hawser::data {

// nullopt: not base64 (padding may be missing).
std::optional<std::string> from_base64(std::string_view text);

}  // namespace hawser::data
