// `read_gemma3`: the text models of Gemma 3 (model_type gemma3_text). Norms before and after each layer, whose factor
// is 1 + weight; norms of queries and keys; GeGLU; embeddings times sqrt(hidden_size); a tied head. Layers with a
// window have a RoPE of their own: its base is rope_local_base_freq, or sliding_attention's in rope_parameters.
//
// RoPE 0 of the description is that of layers without a window, 1 that of the others.
// Source: transformers 5.23, configuration_gemma3.py, modeling_gemma3.py; arXiv 2503.19786.
#pragma once

#include <string>

#include "models/config_reader.h"
#include "models/model.h"
#include "models/tensor_names.h"

namespace hawser::models {

// As read_llama and llama_config_json.
ModelDescription read_gemma3(ConfigReader& config, Problems& problems, const TensorNames* names);
std::string gemma3_config_json(const ModelDescription& description, const std::string& stored);

}  // namespace hawser::models
