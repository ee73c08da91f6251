// What did the user mean? The nearest of the names there are, by edit distance.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hawser {

// Insertions, deletions, substitutions and swaps of neighbours that turn `a` into `b`, both read in lower case.
int edit_distance(std::string_view a, std::string_view b);

// The candidate nearest to `word`, the first of several; "" when none is near enough to be what was meant.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// The entry of the path's folder whose name is nearest, as a path like the one given; "" when none is near.
std::string nearest_file(const std::string& path);

}  // namespace hawser
