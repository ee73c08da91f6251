// Checks a recipe that a command is about to write.
#pragma once

#include <string>
#include <vector>

#include "config/config.h"

namespace hawser {

// Checks across keys as read_recipe does, for a recipe of which some keys are chosen later: what depends on the keys
// `open` is not checked. Keys with a problem are in Recipe::rejected.
void check_without(const std::vector<std::string>& open, Recipe& recipe, Problems& problems);

// Checks that a recipe to be written as `text` to `path` can be read back. Throws what read_recipe would throw, with
// `--set` as the place of values from the command line, and rejects paths that do not survive the round trip.
void check_recipe_to_write(Recipe recipe, const std::string& text, const std::string& path, Purpose purpose);

}  // namespace hawser
