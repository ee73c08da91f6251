// Parameters that a run does not train, as train.freeze names them: the same as the base of an adapter. They have no
// gradient, no master weights and no optimizer state, and a run's checkpoints do not have them.
#pragma once

#include <string>
#include <vector>

#include "models/param_names.h"

namespace hawser::models {

// `spec_of` with the parameters that `frozen` selects frozen. check_frozen has checked the entries.
nn::FlatSpecOf freeze(nn::FlatSpecOf spec_of, ParamNames frozen);

// Adds a problem for each entry that selects nothing or a part of a parameter, and if no parameter is left that trains.
// `place`: of messages.
void check_frozen(const ModelDescription& description, const std::vector<std::string>& entries, const Problem& place,
                  Problems& problems);

}  // namespace hawser::models
