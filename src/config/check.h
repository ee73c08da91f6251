// Checks across keys that do not depend on the number of ranks. Internal to config/.
#pragma once

#include "config/config.h"

namespace hawser {

// Problem::what of a train.global_batch_size that is no multiple of train.micro_batch_size. The key is in
// Recipe::rejected, but its value alone is right.
inline constexpr const char* kBatchSizesDoNotDivide = "batch sizes do not divide";

// Adds keys that checks for a number of ranks or of a folder would find wrong, too, to Recipe::rejected.
void check_across(Recipe& recipe, Purpose purpose, Problems& problems);

}  // namespace hawser
