// adapter_config.json of PEFT: the settings of an adapter in its folder. Source: peft/tuners/lora/config.py of PEFT
// 0.21.
#pragma once

#include <optional>
#include <string>

#include "models/lora.h"

namespace hawser::models {

constexpr const char* kAdapterConfigFile = "adapter_config.json";
constexpr const char* kAdapterWeightsFile = "adapter_model.safetensors";

// Whether a folder has an adapter of PEFT and no model.
bool is_adapter_folder(const std::string& folder);

// Reads FOLDER/adapter_config.json; LoraConfig::name is "". Adds a problem for every setting that is not supported:
// another peft_type, bias, rank_pattern, exclude_modules and others, each if it is not PEFT's default. Does not follow
// base_model_name_or_path. nullopt if a problem was added.
std::optional<LoraConfig> read_lora_config(const std::string& folder, Problems& problems);

// The text of adapter_config.json for adapters of one name in `description`, which `lora` has added. `base`:
// base_model_name_or_path. PEFT selects the same modules by target_modules.
std::string lora_config_json(const LoraConfig& lora, const ModelDescription& description, const std::string& base);

}  // namespace hawser::models
