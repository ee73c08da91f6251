// Opening what the user named as a model: a Hugging Face folder, a config.json to train from scratch, or what `fit`
// left: a checkpoint, or a run's folder for the newest whole one in it.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/recipe.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/formats/safetensors.h"
#include "data/tokenizers/tokenizer.h"
#include "models/families.h"
#include "models/model.h"

namespace hawser::train {

struct OpenModel {
  std::unique_ptr<models::Model> model;
  std::optional<checkpoint::SafetensorsFolder> weights;  // none: from scratch, or out of the checkpoint
  std::optional<checkpoint::Checkpoint> checkpoint;
  std::string recipe;     // of the checkpoint's run: JSON text of every key; "" for any other model
  std::string tokenizer;  // a tokenizer.json; "": there is none
  models::SpecialTokens special;
  Problems skipped;  // newer checkpoints that are not whole
};

// Reads the config and the headers of all weight files and checks them against each other: nothing of a tensor's data
// is read. Adds every problem; the result is to be used only when there is none.
OpenModel open_model(const ModelRecipe& recipe, const std::string& folder, Problems& problems);

// The same of a Hugging Face folder, a checkpoint or a run's folder, with special tokens and tokenizer.
OpenModel open_trained_model(const std::string& path, Problems& problems);

// The tokenizer beside a model; null where there is none.
std::unique_ptr<data::Tokenizer> tokenizer_of_model(const std::string& model_folder);

// data.chat_template of a run's recipe (OpenModel::recipe), where it is a named one; else "": a file's name would be
// relative to a recipe that need not be here.
std::string stored_chat_template(const std::string& recipe);

}  // namespace hawser::train
