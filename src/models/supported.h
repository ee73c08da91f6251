// `check_supported`: rejects what a ModelDescription can say and no layer computes yet.
#pragma once

#include <string>

#include "base/error.h"
#include "models/model.h"

namespace hawser::models {

// Adds one problem for each feature that is not supported, with the first block that has it. `file` names the source.
void check_supported(const ModelDescription& description, const std::string& file, Problems& problems);

}  // namespace hawser::models
