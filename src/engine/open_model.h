// Opens a model by path: a Hugging Face folder, a config.json to train from scratch, or output of `fit`: a checkpoint,
// or a run's folder (its newest complete checkpoint).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/formats/safetensors.h"
#include "config/recipe.h"
#include "models/families.h"
#include "models/lora.h"
#include "models/model.h"
#include "models/weights.h"
#include "text/tokenizers/tokenizer.h"

namespace hawser::engine {

// An adapter in a folder of PEFT.
struct OpenAdapter {
  std::string folder;
  models::LoraConfig lora;
  checkpoint::SafetensorsFolder weights;
};

// Opens the folders and checks their settings. A single adapter has the name "", several "0", "1", ...
std::vector<OpenAdapter> open_adapters(const std::vector<std::string>& folders, Problems& problems);

struct OpenModel {
  std::unique_ptr<models::Model> model;
  // nullopt: from scratch, or from the checkpoint. Beside a checkpoint: the frozen weights, which it does not have.
  std::optional<checkpoint::SafetensorsFolder> weights;
  std::vector<OpenAdapter> adapters;  // on the weights
  std::optional<checkpoint::Checkpoint> checkpoint;
  std::optional<models::LoraConfig> lora;  // of the checkpoint's run: an adapter that it trains
  std::vector<std::string> frozen;         // of the checkpoint's run: train.freeze
  std::string recipe;                      // of the checkpoint's run: JSON text with every key; "" for other models
  std::string tokenizer;                   // path of a tokenizer.json, if there is one
  std::string templates;                   // folder of the chat template, if it is not that of the tokenizer
  models::SpecialTokens special;
  Problems skipped;  // newer checkpoints that are incomplete
};

// What a recipe makes of a model.
struct ModelChanges {
  // Adds to the description that was read, for instance adapters (nn::AdapterConfig), or problems.
  std::function<void(models::ModelDescription& description, Problems& problems)> describe = {};
  // Which parameters are frozen, their dtypes and groups (models::rank_specs).
  nn::FlatSpecOf spec_of = nn::common_domain;
  // What this rank has of the model, and the place of problems with its sizes (models::check_share).
  models::RankShare share = {};
  Problem share_place = {};
  // Of open_trained_model: frozen weights are stored as this recipe's adapter.base says, or, if it says nothing, as the
  // checkpoint's run had them. Absent: they are not quantized.
  std::optional<Recipe> base = {};
  // Of open_trained_model: the average of the weights (optimizer.ema) in place of the weights that train.
  bool averages = false;
};

// From now on the checkpoint's averages (optimizer.ema) are read in place of the weights that they are of; a problem if
// it has none.
void read_averages(checkpoint::Checkpoint& checkpoint, Problems& problems);

// Reads the config and the headers of all weight files and checks them against each other; reads no tensor data. Adds
// every problem; the result is valid only if none was added. If only `changes` add problems, it has the model without
// them. `random_weights`: to train from scratch; `path` is a config.json.
OpenModel open_model(const std::string& path, bool random_weights, Problems& problems,
                     const ModelChanges& changes = {});

// The folders of the weights and of the adapters, in this order. There are weights.
models::WeightSources sources_of(OpenModel& open);

// RunState::base of a model that was opened: the identity of its weights if some of its parameters are frozen,
// otherwise "".
std::string frozen_identity(const OpenModel& open);

// Opens a Hugging Face folder, a checkpoint or a run's folder in the same way, with special tokens and tokenizer. If
// the checkpoint's run trains an adapter, the model has it; if it trains a part of the weights, that part is trainable.
// The model that it trains from is then opened, too: RunState::base_model.
// `adapters`: folders of PEFT, for a Hugging Face folder only; they add up. Only adapters and their modules_to_save are
// trainable in the model then. Tokenizer, chat template and generation_config.json are, each, those of the last adapter
// that has them, otherwise the model's.
OpenModel open_trained_model(const std::string& path, Problems& problems, const ModelChanges& changes = {},
                             const std::vector<std::string>& adapters = {});

// The model of a checkpoint, with the names of its tensors and of `base`, the frozen weights that it does not have.
// `config`: CheckpointMetadata::config.
models::ModelDescription describe_checkpoint(const checkpoint::Checkpoint& checkpoint, const std::string& config,
                                             Problems& problems, const checkpoint::SafetensorsFolder* base = nullptr);

// The tokenizer in a model's folder; null if there is none.
std::unique_ptr<text::Tokenizer> tokenizer_of_model(const std::string& model_folder);

// data.chat_template of a run's recipe (OpenModel::recipe) if it is a built-in name; otherwise "", since a file name is
// relative to a recipe that may not be on this machine.
std::string stored_chat_template(const std::string& recipe);

// What text::chat::open_chat_template takes for a model that was opened, with its tokenizer: the run's stored template,
// a folder, or "" for the one in the tokenizer's folder.
std::string chat_template_of(const OpenModel& open);

}  // namespace hawser::engine
