#include "models/mistral/mistral.h"

#include "models/decoder_keys.h"
#include "models/expert_keys.h"
#include "models/windows.h"

namespace hawser::models {
namespace {

io::OrderedJson begin_mistral_json(const ModelDescription& d, const std::string& architecture) {
  io::OrderedJson json = begin_json(d, architecture);
  json["sliding_window"] = window_json(d);
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
  return json;
}

}  // namespace

ModelDescription read_mistral(ConfigReader& config, Problems& problems, const TensorNames* names) {
  Sizes sizes;
  ModelDescription d = read_decoder(config, problems, names,
                                    {.family = "mistral", .sizes = {.kv_heads = 8}, .max_position = 131072}, sizes);
  set_uniform_window(config, read_window(config, 4096), d);
  return d;
}

ModelDescription read_mixtral(ConfigReader& config, Problems& problems, const TensorNames* names) {
  Sizes sizes;
  ModelDescription d = read_decoder(
      config, problems, names,
      {.family = "mixtral", .sizes = {.kv_heads = 8}, .epsilon = 1e-5, .max_position = 131072, .theta = 1e6}, sizes);
  set_uniform_window(config, read_window(config, 0), d);
  const nn::MoeConfig experts = read_experts(config, sizes, sizes.inner, {.experts = 8, .top_k = 2});
  config.only("router_jitter_noise", 0.0);
  for (BlockDescription& block : d.blocks) {
    const std::string base = block.mlp.gate.substr(0, block.mlp.gate.find("mlp.gate_proj")) + "block_sparse_moe.";
    set_experts(block, experts, base + "gate", base + "experts.{}.w1", base + "experts.{}.w3", base + "experts.{}.w2");
  }
  return d;
}

std::string mistral_config_json(const ModelDescription& d, const std::string& stored) {
  return end_json(begin_mistral_json(d, "MistralForCausalLM"), d, stored);
}

std::string mixtral_config_json(const ModelDescription& d, const std::string& stored) {
  const nn::MoeConfig* experts = experts_of(d);
  HAWSER_CHECK(experts != nullptr, "a Mixtral without experts");
  io::OrderedJson json = begin_mistral_json(d, "MixtralForCausalLM");
  json["num_local_experts"] = experts->experts;
  json["num_experts_per_tok"] = experts->top_k;
  json["router_aux_loss_coef"] = experts->auxiliary_loss;
  json["output_router_logits"] = experts->reported;
  json["router_jitter_noise"] = 0.0;
  return end_json(std::move(json), d, stored);
}

}  // namespace hawser::models
