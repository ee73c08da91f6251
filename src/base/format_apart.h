// `format_apart`: two numbers of bytes for a message about their difference.
#pragma once

#include <string>
#include <utility>

#include "base/cat.h"
#include "base/units.h"

namespace hawser {

// {"31.9 MiB", "32.1 MiB"}; {"33449984 bytes", "33449991 bytes"} if they differ less than that shows.
inline std::pair<std::string, std::string> format_apart(std::int64_t a, std::int64_t b) {
  std::pair<std::string, std::string> out{format_bytes(Bytes(a)), format_bytes(Bytes(b))};
  if (a != b && out.first == out.second) out = {cat(a, " bytes"), cat(b, " bytes")};
  return out;
}

}  // namespace hawser
