// `read_llama`: the family of Llama 2, 3, 3.1, 3.2 and models with the same config.json: SmolLM2, TinyLlama.
//
// Besides the keys of all decoders (models/decoder_keys.h) it reads attention_bias and mlp_bias. Ignored, because they
// do not change results: pretraining_tp (splits the same GEMMs), rope_interleaved.
// Source: transformers 4.57 and 5.x, models/llama/configuration_llama.py.
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
