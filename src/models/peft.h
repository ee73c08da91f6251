// Folders of PEFT's adapters: adapter_model.safetensors and adapter_config.json. Names of tensors and export. Reading:
// WeightSources::add_adapter (models/weights.h).
//
// PEFT calls the tensors of an adapter of the Linear NAME
//   base_model.model.NAME.lora_A.weight, base_model.model.NAME.lora_B.weight, base_model.model.NAME.lora_magnitude_vector
// and those of modules_to_save base_model.model.NAME.weight. Some files have the adapter's name as well
// (lora_A.default.weight), and what wraps a module: NAME.base_layer.weight, NAME.modules_to_save.default.weight.
// Adapters of embeddings (lora_embedding_A) are unsupported: no parameter of a model has their name, so check_weights
// reports them.
#pragma once

#include <optional>
#include <string>

#include "models/weights.h"

namespace hawser::models {

constexpr const char* kPeftPrefix = "base_model.model.";

// The model's name of a tensor of PEFT's file, if AdapterConfig::name is `adapter`, which may be "". There is none if
// the file's name does not begin with kPeftPrefix.
std::optional<std::string> name_of_peft(const std::string& file_name, const std::string& adapter);
// The name that PEFT writes for a tensor of the model.
std::string peft_name(const std::string& name, const std::string& adapter);

struct AdapterExportOptions {
  DType stored = DType::f32;                           // or bf16
  std::string adapter;                                 // AdapterConfig::name of the adapter that is written
  std::string config;                                  // text of adapter_config.json
  std::vector<checkpoint::Attachment> tokenizer = {};  // its files, and generation_config.json
  bool replace = false;                                // replace an earlier export in the folder
  std::int64_t piece_elements = kExportElements;       // read and written at a time
};

// Writes a folder with the trainable tensors alone, under PEFT's names, adapter_config.json and the tokenizer's files,
// atomically. Adapters of other names are not written. InternalError if nothing is trainable; UserError if writing
// fails.
void export_adapter(const std::string& folder, const Model& model, const StateSource& source,
                    const AdapterExportOptions& options);

}  // namespace hawser::models
