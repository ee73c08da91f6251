// Groups of parameters with a learning rate and a weight decay of their own, as optimizer.groups names them.
#pragma once

#include <string>
#include <vector>

#include "models/param_names.h"

namespace hawser::models {

// The entries of one group.
struct ParamGroup {
  std::vector<std::string> match;
  bool decays = false;  // it has a weight decay of its own, above 0
};

// `spec_of` with nn::FlatSpec::group: the number of the first group that selects a parameter, from 1. Others
// have group 0.
nn::FlatSpecOf with_groups(nn::FlatSpecOf spec_of, const std::vector<ParamGroup>& groups);

// Adds a problem for each entry that selects nothing, or only what is frozen or in an earlier group, for parameters
// parts of which are in different groups, and for a group that decays and has no matrix. `model`: with all else that
// the recipe makes of it; its groups are not read. `place`: of messages.
void check_groups(const Model& model, const std::vector<ParamGroup>& groups, const Problem& place, Problems& problems);

}  // namespace hawser::models
