// A recipe that a command is about to write for somebody.
#pragma once

#include <string>

#include "config/config.h"

namespace hawser {

// Whether a recipe that is about to be written as `text`, to `path`, would be read back: throws what read_recipe would,
// for what was set on the command line with that as its place; and rejects paths that come back as others.
void check_recipe_to_write(const Recipe& recipe, const std::string& text, const std::string& path, Purpose purpose);

}  // namespace hawser
