// `read_mistral`, `read_mixtral`: Mistral is Llama with a sliding window in every layer; Mixtral has experts in place
// of the MLPs. transformers 4 and 5 have the same keys; both write an expert's tensors as block_sparse_moe.experts.N.w1
// (gate), w2 (down) and w3 (up).
// Source: transformers 5.23, configuration_mistral.py, configuration_mixtral.py; arXiv 2310.06825, 2401.04088.
#pragma once

#include <string>

#include "models/config_reader.h"
#include "models/model.h"
#include "models/tensor_names.h"

namespace hawser::models {

// As read_llama and llama_config_json.
ModelDescription read_mistral(ConfigReader& config, Problems& problems, const TensorNames* names);
ModelDescription read_mixtral(ConfigReader& config, Problems& problems, const TensorNames* names);
std::string mistral_config_json(const ModelDescription& description, const std::string& stored);
std::string mixtral_config_json(const ModelDescription& description, const std::string& stored);

}  // namespace hawser::models
