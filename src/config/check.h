// Checks across keys that need no ranks. Internal to config/.
#pragma once

#include <set>
#include <string>

#include "config/config.h"

namespace hawser {

// `rejected`: keys whose own value was not taken; what depends on them is not judged again.
void check_across(const Recipe& recipe, Purpose purpose, const std::set<std::string>& rejected, Problems& problems);

}  // namespace hawser
