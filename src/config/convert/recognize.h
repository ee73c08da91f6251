// `recognized_trainer`: whose file a YAML is, by its keys. Internal to config/.
#pragma once

#include <yaml-cpp/yaml.h>

#include <optional>

#include "config/convert/convert.h"

namespace hawser {

// The trainer that has the file's key for the model, such as base_model or model_name_or_path. None for a recipe.
std::optional<OtherTrainer> recognized_trainer(const YAML::Node& root);

}  // namespace hawser
