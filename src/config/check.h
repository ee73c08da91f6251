// Checks across keys that do not depend on the number of ranks. Internal to config/.
#pragma once

#include "config/config.h"

namespace hawser {

// Adds keys that checks for a number of ranks or of a folder would find wrong, too, to Recipe::rejected.
void check_across(Recipe& recipe, Purpose purpose, Problems& problems);

}  // namespace hawser
