// `read_llama`: the family of Llama 2, 3, 3.1, 3.2 and models with the same config.json: SmolLM2, TinyLlama.
//
// Sizes are required; other absent keys have the defaults of transformers' LlamaConfig. RoPE is read in the style of
// transformers 4 (rope_theta and rope_scaling) and 5 (rope_parameters); if a file has both, rope_scaling takes
// precedence, as in transformers. Ignored, because they do not change results: pretraining_tp (splits the same GEMMs),
// use_cache, token ids, rope_interleaved and other keys that transformers' Llama does not read.
//
// Initialization: every matrix is drawn from N(0, initializer_range), o_proj and down_proj too, as in transformers.
// (GPT-2 and Megatron divide these two by sqrt(2 * layers).) Norms start at one, biases at zero.
// Source: transformers 4.57 and 5.x, models/llama/configuration_llama.py, modeling_rope_utils.py.
#pragma once

#include <string>

#include "models/config_reader.h"
#include "models/model.h"
#include "models/tensor_names.h"

namespace hawser::models {

// Adds problems for keys that are missing, invalid or not supported; the description is valid only if there are none.
// `names`, if not null, decides whether tensors have the prefix "model."; a folder of LlamaModel has none.
ModelDescription read_llama(ConfigReader& config, Problems& problems, const TensorNames* names);

// All keys that the description depends on, in the style of transformers 4; `stored`: "float32", "bfloat16".
std::string llama_config_json(const ModelDescription& description, const std::string& stored);

}  // namespace hawser::models
