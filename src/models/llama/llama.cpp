#include "models/llama/llama.h"

#include "models/decoder_keys.h"

namespace hawser::models {

ModelDescription read_llama(ConfigReader& config, Problems& problems, const TensorNames* names) {
  Sizes sizes;
  const bool attention_bias = config.flag("attention_bias", false), mlp_bias = config.flag("mlp_bias", false);
  ModelDescription d = read_decoder(config, problems, names, {.family = "llama", .max_position = 2048}, sizes);
  for (BlockDescription& block : d.blocks) {
    block.attention.qkv_bias = block.attention.output_bias = attention_bias;
    block.mlp.bias = mlp_bias;
  }
  return d;
}

std::string llama_config_json(const ModelDescription& d, const std::string& stored) {
  io::OrderedJson json = begin_json(d, "LlamaForCausalLM");
  json["attention_bias"] = d.blocks.front().attention.qkv_bias;
  json["attention_dropout"] = 0.0;
  json["mlp_bias"] = d.blocks.front().mlp.bias;
  json["hidden_act"] = "silu";
  return end_json(std::move(json), d, stored);
}

}  // namespace hawser::models
