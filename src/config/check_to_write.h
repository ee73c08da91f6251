// Checks a recipe that a command is about to write.
#pragma once

#include <string>

#include "config/config.h"

namespace hawser {

// Checks that a recipe to be written as `text` to `path` can be read back. Throws what read_recipe would throw, with
// `--set` as the place of values from the command line, and rejects paths that do not survive the round trip.
void check_recipe_to_write(Recipe recipe, const std::string& text, const std::string& path, Purpose purpose);

}  // namespace hawser
