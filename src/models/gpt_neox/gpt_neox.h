// `read_gpt_neox`: GPT-NeoX and Pythia. LayerNorm, GELU without a gate, a part of each head rotated, attention and MLP
// side by side (or one after the other, with use_parallel_residual false). Files have q, k and v of each head together.
// The head is lm_head in files of transformers 5 and embed_out in those of 4.
// Source: transformers 5.23, configuration_gpt_neox.py, modeling_gpt_neox.py; arXiv 2204.06745.
#pragma once

#include <string>

#include "models/config_reader.h"
#include "models/model.h"
#include "models/tensor_names.h"

namespace hawser::models {

// As read_llama and llama_config_json; the prefix is "gpt_neox.".
ModelDescription read_gpt_neox(ConfigReader& config, Problems& problems, const TensorNames* names);
std::string gpt_neox_config_json(const ModelDescription& description, const std::string& stored);

}  // namespace hawser::models
