// Opens a model by path: a Hugging Face folder, a config.json to train from scratch, or output of `fit`: a checkpoint,
// or a run's folder (its newest complete checkpoint).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/formats/safetensors.h"
#include "models/families.h"
#include "models/model.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::engine {

struct OpenModel {
  std::unique_ptr<models::Model> model;
  std::optional<checkpoint::SafetensorsFolder> weights;  // nullopt: from scratch, or from the checkpoint
  std::optional<checkpoint::Checkpoint> checkpoint;
  std::string recipe;     // of the checkpoint's run: JSON text with every key; "" for other models
  std::string tokenizer;  // path of a tokenizer.json; "": none
  models::SpecialTokens special;
  Problems skipped;  // newer checkpoints that are incomplete
};

// What a recipe makes of a model.
struct ModelChanges {
  // Adds to the description that was read, for instance adapters (nn::AdapterConfig), or problems.
  std::function<void(models::ModelDescription& description, Problems& problems)> describe = {};
  nn::FlatSpecOf spec_of = nn::common_domain;  // which parameters are frozen, their dtypes and groups
};

// Reads the config and the headers of all weight files and checks them against each other; reads no tensor data. Adds
// every problem; the result is valid only if none was added.
// `random_weights`: to train from scratch; `path` is a config.json.
OpenModel open_model(const std::string& path, bool random_weights, Problems& problems,
                     const ModelChanges& changes = {});

// RunState::base of a model that was opened: the identity of its weights if some of its parameters are frozen, otherwise
// "".
std::string frozen_identity(const OpenModel& open);

// Opens a Hugging Face folder, a checkpoint or a run's folder in the same way, with special tokens and tokenizer.
// `changes`: what the recipe of the checkpoint's run makes of the model; it gets OpenModel::recipe.
using ModelChangesOf = std::function<ModelChanges(const std::string& recipe)>;
OpenModel open_trained_model(const std::string& path, Problems& problems, const ModelChangesOf& changes = {});

// The model of a checkpoint, with the names of its tensors. `config`: CheckpointMetadata::config.
models::ModelDescription describe_checkpoint(const checkpoint::Checkpoint& checkpoint, const std::string& config,
                                             Problems& problems);

// The tokenizer in a model's folder; null if there is none.
std::unique_ptr<text::Tokenizer> tokenizer_of_model(const std::string& model_folder);

// data.chat_template of a run's recipe (OpenModel::recipe) if it is a built-in name; otherwise "": a file name is
// relative to a recipe that may not be on this machine.
std::string stored_chat_template(const std::string& recipe);

}  // namespace hawser::engine
