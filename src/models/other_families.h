// Rejects a config.json or a folder of weights that claims one family and has the features of another: transformers
// ignores the other's keys and tensors without a word, or the two contradict each other.
#pragma once

#include <string>

#include "models/config_reader.h"
#include "models/model.h"
#include "models/tensor_names.h"

namespace hawser::models {

// Keys that transformers does not read for this family, unless their value changes nothing: one problem each.
void reject_other_keys(ConfigReader& config, const std::string& family);

// Tensors of block 0 that another family's blocks have: one problem.
void reject_other_tensors(ConfigReader& config, const ModelDescription& description, const TensorNames& names);

}  // namespace hawser::models
