// `read_qwen2` (Qwen2 and 2.5), `read_qwen3`, `read_qwen3_moe`. Qwen2 is Llama with biases of q, k and v, Qwen3 has
// norms of queries and keys in their place, Qwen3-MoE experts, too. An expert's tensors in files are
// mlp.experts.N.gate_proj, up_proj and down_proj.
//
// Windows: with use_sliding_window, layers from max_window_layers on have one, or those that layer_types lists; in
// Qwen3-MoE all layers.
// Source: transformers 5.23, configuration_qwen2.py, configuration_qwen3.py, configuration_qwen3_moe.py.
#pragma once

#include <string>

#include "models/config_reader.h"
#include "models/model.h"
#include "models/tensor_names.h"

namespace hawser::models {

// As read_llama and llama_config_json.
ModelDescription read_qwen2(ConfigReader& config, Problems& problems, const TensorNames* names);
ModelDescription read_qwen3(ConfigReader& config, Problems& problems, const TensorNames* names);
ModelDescription read_qwen3_moe(ConfigReader& config, Problems& problems, const TensorNames* names);
std::string qwen2_config_json(const ModelDescription& description, const std::string& stored);
std::string qwen3_config_json(const ModelDescription& description, const std::string& stored);
std::string qwen3_moe_config_json(const ModelDescription& description, const std::string& stored);

}  // namespace hawser::models
