// Descriptions of decoders with Llama's block: what the families Llama, Mistral, Qwen, Mixtral and Gemma have in
// common. A family reads its own keys besides, and changes the description.
//
// Initialization: every matrix is drawn from N(0, initializer_range), o_proj and down_proj too, as in transformers.
// (GPT-2 and Megatron divide these two by sqrt(2 * layers).) Norms start at one, biases at zero.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/json.h"
#include "models/config_reader.h"
#include "models/model.h"
#include "models/rope_keys.h"
#include "models/sizes.h"
#include "models/tensor_names.h"

namespace hawser::models {

// What a family takes for keys that are absent.
struct DecoderDefaults {
  const char* family = "";  // model_type
  SizeDefaults sizes = {};
  double epsilon = 1e-6;
  std::int64_t max_position = 0;
  double theta = 10000.0;
  bool tied = false;
  bool own_rope = false;  // the family's reader sets ModelDescription::ropes
  bool own_activation = false;
};

// A description of serial blocks with RMS norms and SwiGLU, without biases and windows; with problems, one without
// blocks. Sizes are required; other absent keys have the defaults of transformers. Rejects keys that are not supported
// in any of these families. Ignored, because they do not change results: use_cache, token ids and keys that
// transformers does not read. `sizes` receives the sizes. `names`, if not null, decides whether tensors have the prefix
// "model."; a folder of LlamaModel has none.
ModelDescription read_decoder(ConfigReader& config, Problems& problems, const TensorNames* names,
                              const DecoderDefaults& defaults, Sizes& sizes);

// Rejects what no family supports: dropout, quantised weights but those in NF4 by bitsandbytes, attention that is not
// causal.
void reject_unsupported(ConfigReader& config);

// quantization_config.llm_int8_skip_modules of a config.json whose weights bitsandbytes has quantized to NF4: these
// keep their dtype. Absent: of another config.
std::optional<std::vector<std::string>> unquantized_modules(const nlohmann::json& config);

// The keys of a config.json up to those of RoPE, in the style of transformers 4, which 5 reads too.
// `architecture`: "LlamaForCausalLM". The family adds its own keys, then end_json the rest.
io::OrderedJson begin_json(const ModelDescription& description, const std::string& architecture);
std::string end_json(io::OrderedJson json, const ModelDescription& description, const std::string& stored);

}  // namespace hawser::models
