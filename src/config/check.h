// Checks across keys that do not depend on the number of ranks. Internal to config/.
#pragma once

#include <set>
#include <string>

#include "config/config.h"

namespace hawser {

// `rejected`: keys whose own value was rejected; checks that depend on them are skipped.
void check_across(const Recipe& recipe, Purpose purpose, const std::set<std::string>& rejected, Problems& problems);

}  // namespace hawser
