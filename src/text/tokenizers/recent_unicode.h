// `recent_ranges`: characters added by Unicode 15 and 16. PCRE2 of Debian 12 has Unicode 14, Oniguruma in `tokenizers`
// has 16, so texts with these characters would be split differently. For such texts, patterns have a second form that
// lists the characters (regex.h). The table is the difference of the general categories of both versions; a newer PCRE2
// does not need it.
#pragma once

#include <span>
#include <string_view>

namespace hawser::text {

struct RecentRange {
  char32_t first, last;
  const char* category;  // general category: "Lo", "Nd", ...
  char32_t older;        // a character of the same script in Unicode 14; 0 if the script is newer
};

// Ascending and disjoint.
std::span<const RecentRange> recent_ranges();

// Whether `text`, valid UTF-8, contains one.
bool has_recent_characters(std::string_view text);

}  // namespace hawser::text
