#include "models/qwen/qwen.h"

#include <algorithm>

#include "models/decoder_keys.h"
#include "models/expert_keys.h"
#include "models/windows.h"

namespace hawser::models {
namespace {

constexpr std::int64_t kQwenPositions = 32768;

// The window if use_sliding_window says that there is one, otherwise 0.
std::int64_t used_window(ConfigReader& config) {
  return config.flag("use_sliding_window", false) ? read_window(config, 4096) : 0;
}

void read_layer_windows(ConfigReader& config, const Sizes& sizes, ModelDescription& d) {
  const std::int64_t window = used_window(config);
  const std::int64_t first = config.integer("max_window_layers", 0, kMaxLayers, 28);
  const std::vector<bool> sliding =
      read_layer_types(config, sizes.layers, window, [&](std::int64_t layer) { return window > 0 && layer >= first; });
  if (!d.blocks.empty()) set_windows(d, sliding, window);
}

// Qwen3's attention: norms of queries and keys, and biases of all projections or none.
void set_attention(ConfigReader& config, ModelDescription& d) {
  const bool bias = config.flag("attention_bias", false);
  for (BlockDescription& block : d.blocks) {
    nn::AttentionConfig& attention = block.attention;
    const std::string base = attention.q.substr(0, attention.q.size() - std::string("q_proj").size());
    attention.qkv_bias = attention.output_bias = bias;
    attention.qk_norm = attention.norm_config;
    attention.q_norm = base + "q_norm";
    attention.k_norm = base + "k_norm";
  }
}

io::OrderedJson begin_qwen_json(const ModelDescription& d, const std::string& architecture) {
  io::OrderedJson json = begin_json(d, architecture);
  json["use_sliding_window"] = window_of(d) > 0;
  json["sliding_window"] = window_json(d);
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
  return json;
}

// The first layer from which on all have a window; transformers 4 before 4.53 reads only this.
std::int64_t first_window_layer(const ModelDescription& d) {
  auto first = static_cast<std::int64_t>(d.blocks.size());
  while (first > 0 && d.blocks[static_cast<std::size_t>(first - 1)].attention.window > 0) --first;
  return first;
}

}  // namespace

ModelDescription read_qwen2(ConfigReader& config, Problems& problems, const TensorNames* names) {
  Sizes sizes;
  ModelDescription d = read_decoder(
      config, problems, names, {.family = "qwen2", .sizes = {.kv_heads = 32}, .max_position = kQwenPositions}, sizes);
  read_layer_windows(config, sizes, d);
  for (BlockDescription& block : d.blocks) block.attention.qkv_bias = true;
  return d;
}

ModelDescription read_qwen3(ConfigReader& config, Problems& problems, const TensorNames* names) {
  Sizes sizes;
  ModelDescription d = read_decoder(
      config, problems, names,
      {.family = "qwen3", .sizes = {.kv_heads = 32, .head_dim = 128}, .max_position = kQwenPositions}, sizes);
  read_layer_windows(config, sizes, d);
  set_attention(config, d);
  return d;
}

namespace {

std::string list_text(const std::vector<std::size_t>& layers) {
  constexpr std::size_t kMax = 8;
  std::string out;
  for (std::size_t i = 0; i < std::min(layers.size(), kMax); ++i) out += cat(i == 0 ? "" : ", ", layers[i]);
  return cat("[", out, layers.size() > kMax ? ", ..." : "", "]");
}

// Weights that have experts in other layers than the config: one problem, and true. `router`, `gate`: names of those of
// a layer.
template <class Name>
bool compare_dense_layers(ConfigReader& config, const ModelDescription& d, const TensorNames& names, std::int64_t step,
                          const Name& router, const Name& gate) {
  std::vector<std::size_t> of_config, of_weights;
  bool experts = false, differ = false;
  for (std::size_t b = 0; b < d.blocks.size(); ++b) {
    const bool dense = !d.blocks[b].moe, has_router = names.has(router(b)), has_gate = names.has(gate(b));
    const bool dense_weights = has_router == has_gate ? dense : has_gate;  // a layer that is missing is another problem
    experts = experts || has_router;
    differ = differ || dense != dense_weights;
    if (dense) of_config.push_back(b);
    if (dense_weights) of_weights.push_back(b);
  }
  if (!experts || !differ) return false;
  config.reject("mlp_only_layers", "layers without experts differ from the weights", list_text(of_weights),
                list_text(of_config), step == 1 ? "" : "decoder_sparse_step: 1 with this list");
  return true;
}

}  // namespace

ModelDescription read_qwen3_moe(ConfigReader& config, Problems& problems, const TensorNames* names) {
  Sizes sizes;
  ModelDescription d =
      read_decoder(config, problems, names,
                   {.family = "qwen3_moe", .sizes = {.kv_heads = 4}, .max_position = kQwenPositions}, sizes);
  set_uniform_window(config, used_window(config), d);
  set_attention(config, d);
  nn::MoeConfig experts = read_experts(config, sizes, config.integer("moe_intermediate_size", 1, kMaxInner, 768),
                                       {.experts = 128, .top_k = 8});
  experts.normalise_top_k = config.flag("norm_topk_prob", false);
  const std::int64_t step = config.integer("decoder_sparse_step", 1, kMaxLayers, 1);
  const std::vector<std::int64_t> dense = config.integers("mlp_only_layers", kMaxLayers);
  const auto base_of = [&](std::size_t b) {
    const std::string& gate = d.blocks[b].mlp.gate;
    return gate.substr(0, gate.size() - std::string("gate_proj").size());
  };
  for (std::size_t b = 0; b < d.blocks.size(); ++b) {
    const auto layer = static_cast<std::int64_t>(b);
    if ((layer + 1) % step != 0 || std::ranges::find(dense, layer) != dense.end()) continue;
    const std::string base = base_of(b);
    set_experts(d.blocks[b], experts, base + "gate", base + "experts.{}.gate_proj", base + "experts.{}.up_proj",
                base + "experts.{}.down_proj");
  }
  const Json* list = config.find("mlp_only_layers");
  if (names != nullptr && (list == nullptr || list->size() == dense.size())) {  // else it has been rejected
    const auto name = [&](const char* tensor) { return [&, tensor](std::size_t b) { return base_of(b) + tensor; }; };
    if (compare_dense_layers(config, d, *names, step, name("gate.weight"), name("gate_proj.weight"))) return d;
  }
  if (!d.blocks.empty() && experts_of(d) == nullptr) {
    const char* key = static_cast<std::size_t>(step) > d.blocks.size() ? "decoder_sparse_step" : "mlp_only_layers";
    config.reject(key, "no layer has experts", "model_type qwen3 for a model without experts", "");
  }
  return d;
}

std::string qwen2_config_json(const ModelDescription& d, const std::string& stored) {
  io::OrderedJson json = begin_qwen_json(d, "Qwen2ForCausalLM");
  json["max_window_layers"] = first_window_layer(d);
  json["layer_types"] = layer_types_json(d);
  return end_json(std::move(json), d, stored);
}

std::string qwen3_config_json(const ModelDescription& d, const std::string& stored) {
  io::OrderedJson json = begin_qwen_json(d, "Qwen3ForCausalLM");
  json["max_window_layers"] = first_window_layer(d);
  json["layer_types"] = layer_types_json(d);
  json["attention_bias"] = d.blocks.front().attention.qkv_bias;
  return end_json(std::move(json), d, stored);
}

std::string qwen3_moe_config_json(const ModelDescription& d, const std::string& stored) {
  const nn::MoeConfig* experts = experts_of(d);
  HAWSER_CHECK(experts != nullptr, "a Qwen3-MoE without experts");
  io::OrderedJson dense = io::OrderedJson::array();
  for (std::size_t b = 0; b < d.blocks.size(); ++b) {
    if (!d.blocks[b].moe) dense.push_back(b);
  }
  io::OrderedJson json = begin_qwen_json(d, "Qwen3MoeForCausalLM");
  json["attention_bias"] = d.blocks.front().attention.qkv_bias;
  json["moe_intermediate_size"] = experts->inner;
  json["num_experts"] = experts->experts;
  json["num_experts_per_tok"] = experts->top_k;
  json["norm_topk_prob"] = experts->normalise_top_k;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = dense;
  json["router_aux_loss_coef"] = experts->auxiliary_loss;
  json["output_router_logits"] = experts->reported;
  return end_json(std::move(json), d, stored);
}

}  // namespace hawser::models
