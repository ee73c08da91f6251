// Llama 2, 3, 3.1, 3.2 and what shares their config.json: SmolLM2, TinyLlama.
//
// Sizes must be there; other absent keys have the defaults of transformers' LlamaConfig. RoPE is read in the style of
// transformers 4 (rope_theta and rope_scaling) and 5 (rope_parameters); where a file has both, rope_scaling wins, as it
// does there. Left alone, because they change no result: pretraining_tp (slices the same products), use_cache, token
// ids, rope_interleaved and other keys that transformers' Llama does not read.
//
// From scratch every matrix starts from N(0, initializer_range), o_proj and down_proj too, as in transformers, so that
// a model made here starts where one made there does. (GPT-2 and Megatron divide these two by sqrt(2 * layers).) Norms
// start at one, biases at zero.
// Source: transformers 4.57 and 5.x, models/llama/configuration_llama.py, modeling_rope_utils.py.
#pragma once

#include <string>

#include "models/config_reader.h"
#include "models/model.h"

namespace hawser::models {

// Adds problems for what is missing, wrong, or not supported; the description is of use only where there are none.
ModelDescription read_llama(ConfigReader& config, Problems& problems);

// All that decides the description, in the style of transformers 4; `stored`: "float32", "bfloat16".
std::string llama_config_json(const ModelDescription& description, const std::string& stored);

}  // namespace hawser::models
