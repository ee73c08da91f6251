#include "models/gemma/gemma.h"

#include <cmath>

#include "models/decoder_keys.h"
#include "models/windows.h"

namespace hawser::models {
namespace {

constexpr double kGlobalTheta = 1e6, kLocalTheta = 1e4;
constexpr std::int64_t kDefaultWindow = 4096;

// One kind of layer's RoPE in a nested rope_parameters.
ops::RopeConfig read_one_rope(ConfigReader& nested, const char* kind, const RopeDefaults& defaults) {
  auto fields = nested.object(kind);
  if (!fields) return {.theta = defaults.theta};
  if (!fields->flag("truncate", true)) {
    fields->reject("truncate", "not supported", "true", "false");  // transformers ignores it there
  }
  return read_rope_fields(*fields, nullptr, 0, defaults);
}

// The RoPEs of layers without a window and with one, without head_dim.
std::vector<ops::RopeConfig> read_ropes(ConfigReader& config, std::int64_t max_position) {
  const RopeDefaults full{.theta = config.positive("rope_theta", kGlobalTheta), .max_position = max_position};
  const RopeDefaults sliding{.theta = config.positive("rope_local_base_freq", kLocalTheta),
                             .max_position = max_position};
  auto parameters = config.object("rope_parameters");
  const auto scaling = config.object("rope_scaling");
  if (parameters && !is_nested_rope(*parameters)) {
    config.reject("rope_parameters", "not supported", "one set of RoPE parameters for each kind of layer", "one set");
    return {{.theta = full.theta}, {.theta = sliding.theta}};
  }
  if (scaling && !scaling->json().empty()) {
    if (parameters) config.reject("rope_scaling", "not supported", "rope_parameters alone", "both");
    ConfigReader fields = *scaling;
    return {read_rope_fields(fields, nullptr, 0, full), {.theta = sliding.theta}};
  }
  if (!parameters) return {{.theta = full.theta}, {.theta = sliding.theta}};
  return {read_one_rope(*parameters, "full_attention", full), read_one_rope(*parameters, "sliding_attention", sliding)};
}

void set_norms(ModelDescription& d) {
  d.head.norm_config.unit_offset = true;
  for (BlockDescription& block : d.blocks) {
    nn::AttentionConfig& attention = block.attention;
    attention.norm_config.unit_offset = block.mlp.norm_config.unit_offset = true;
    attention.norm_place = block.mlp.norm_place = nn::NormPlace::sandwich;
    attention.qk_norm = attention.norm_config;
    const std::string base = attention.q.substr(0, attention.q.size() - std::string("self_attn.q_proj").size());
    attention.q_norm = base + "self_attn.q_norm";
    attention.k_norm = base + "self_attn.k_norm";
    attention.post_norm = base + "post_attention_layernorm";
    block.mlp.norm = base + "pre_feedforward_layernorm";
    block.mlp.post_norm = base + "post_feedforward_layernorm";
  }
}

// sliding_window_pattern, all that transformers before 4.53 reads: every layer whose number it divides is without a
// window.
// 0: there is none.
std::int64_t pattern_of(const ModelDescription& d) {
  const auto layers = static_cast<std::int64_t>(d.blocks.size());
  std::int64_t pattern = 1;
  while (pattern <= layers && d.blocks[static_cast<std::size_t>(pattern - 1)].attention.window > 0) ++pattern;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    if ((d.blocks[static_cast<std::size_t>(layer)].attention.window > 0) != ((layer + 1) % pattern != 0)) return 0;
  }
  return pattern;
}

}  // namespace

ModelDescription read_gemma3(ConfigReader& config, Problems& problems, const TensorNames* names) {
  Sizes sizes;
  ModelDescription d = read_decoder(config, problems, names,
                                    {.family = "gemma3_text",
                                     .sizes = {.kv_heads = 4, .head_dim = 256},
                                     .max_position = 131072,
                                     .tied = true,
                                     .own_rope = true,
                                     .own_activation = true},
                                    sizes);
  // Two names of one function, two formulas of it.
  config.choice("hidden_activation", {"gelu_pytorch_tanh", "gelu_new"}, "gelu_pytorch_tanh");
  const bool bias = config.flag("attention_bias", false);
  const double scalar = config.positive("query_pre_attn_scalar", 256.0);
  config.none("attn_logit_softcapping");
  config.none("final_logit_softcapping");
  d.ropes = read_ropes(config, d.max_position);
  const std::int64_t window = read_window(config, kDefaultWindow);
  const std::int64_t pattern = config.integer("sliding_window_pattern", 1, kMaxLayers, 6);
  const std::vector<bool> sliding =
      read_layer_types(config, sizes.layers, window, [&](std::int64_t layer) { return (layer + 1) % pattern != 0; });
  if (d.blocks.empty()) return d;

  for (ops::RopeConfig& rope : d.ropes) rope.head_dim = sizes.head_dim;
  d.embedding.scale = std::sqrt(static_cast<double>(sizes.width));
  set_norms(d);
  set_windows(d, sliding, window);
  for (std::size_t b = 0; b < d.blocks.size(); ++b) {
    nn::AttentionConfig& attention = d.blocks[b].attention;
    attention.qkv_bias = attention.output_bias = bias;
    attention.scale = 1.0 / std::sqrt(scalar);
    attention.rope = sliding[b] ? 1 : 0;
    attention.rope_scale = ops::rope_attention_factor(d.ropes[static_cast<std::size_t>(*attention.rope)]);
    d.blocks[b].mlp.activation = nn::Activation::geglu_tanh;
  }
  return d;
}

std::string gemma3_config_json(const ModelDescription& d, const std::string& stored) {
  const nn::AttentionConfig& attention = d.blocks.front().attention;
  io::OrderedJson json = begin_json(d, "Gemma3ForCausalLM");
  json["rope_local_base_freq"] = d.ropes[1].theta;
  if (d.ropes[1].kind != ops::RopeKind::standard) {
    // Only transformers 5 has a scaling for the layers with a window.
    const auto one = [](const ops::RopeConfig& rope) {
      io::OrderedJson fields = rope_scaling_json(rope);
      if (fields.is_null()) fields = {{"rope_type", "default"}};
      fields["rope_theta"] = rope.theta;
      return fields;
    };
    json.erase("rope_scaling");
    json["rope_parameters"] = {{"full_attention", one(d.ropes[0])}, {"sliding_attention", one(d.ropes[1])}};
  }
  // transformers 5 accepts whole numbers alone.
  const double scalar = 1.0 / (attention.score_scale() * attention.score_scale()), rounded = std::round(scalar);
  if (std::abs(scalar - rounded) < 1e-9 * scalar) {
    json["query_pre_attn_scalar"] = static_cast<std::int64_t>(rounded);
  } else {
    json["query_pre_attn_scalar"] = scalar;
  }
  const std::int64_t window = window_of(d), pattern = pattern_of(d);
  json["sliding_window"] = window > 0 ? window : kDefaultWindow;  // transformers needs one even without such layers
  if (pattern > 0) json["sliding_window_pattern"] = pattern;
  json["layer_types"] = layer_types_json(d);
  json["attention_bias"] = attention.qkv_bias;
  json["attention_dropout"] = 0.0;
  json["attn_logit_softcapping"] = nullptr;
  json["final_logit_softcapping"] = nullptr;
  json["hidden_activation"] = "gelu_pytorch_tanh";
  return end_json(std::move(json), d, stored);
}

}  // namespace hawser::models
