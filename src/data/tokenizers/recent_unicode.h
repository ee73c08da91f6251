// Characters that Unicode 15 and 16 added. Debian 12's PCRE2 knows Unicode 14, the Oniguruma inside `tokenizers` knows
// 16: a text with one of these would be split differently, so patterns get a second form that lists them (regex.h).
// The table is the difference of the two versions' general categories; a newer PCRE2 makes it needless.
#pragma once

#include <span>
#include <string_view>

namespace hawser::data {

struct RecentRange {
  char32_t first, last;
  const char* category;  // general category: "Lo", "Nd", ...
};

// Ascending, apart from each other.
std::span<const RecentRange> recent_ranges();

// Whether `text`, valid UTF-8, holds one.
bool has_recent_characters(std::string_view text);

}  // namespace hawser::data
