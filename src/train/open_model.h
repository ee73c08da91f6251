// Opening what the user named as a model: a Hugging Face folder, or a config.json to train from scratch.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/recipe.h"
#include "checkpoint/formats/safetensors.h"
#include "data/tokenizers/tokenizer.h"
#include "models/model.h"

namespace hawser::train {

struct OpenModel {
  std::unique_ptr<models::Model> model;
  std::optional<checkpoint::SafetensorsFolder> weights;  // none: from scratch
};

// Reads the config and the headers of all weight files and checks them against each other: nothing of a tensor's data
// is read. Adds every problem; the result is to be used only when there is none.
OpenModel open_model(const ModelRecipe& recipe, const std::string& folder, Problems& problems);

// The tokenizer beside a model; null where there is none.
std::unique_ptr<data::Tokenizer> tokenizer_beside(const std::string& model_folder);

// The element type of a run: what the recipe says, or what the device prefers.
DType compute_dtype(const PrecisionRecipe& recipe, DeviceKind device);

}  // namespace hawser::train
