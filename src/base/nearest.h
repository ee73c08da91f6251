// Suggestions for misspelled names, by edit distance.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hawser {

// Insertions, deletions, substitutions and swaps of adjacent characters that turn `a` into `b`; ignores case.
int edit_distance(std::string_view a, std::string_view b);

// The candidate nearest to `word`, the first if several are; "" if none is near enough.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// The file in the path's folder with the nearest name, as a path like `path`; "" if none is near enough.
std::string nearest_file(const std::string& path);

}  // namespace hawser
