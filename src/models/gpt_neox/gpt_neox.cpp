#include "models/gpt_neox/gpt_neox.h"

#include <cmath>

#include "models/decoder_keys.h"

namespace hawser::models {
namespace {

// Rejects a key that transformers does not read for this family and that contradicts one that it reads.
void expect_same(ConfigReader& config, const char* key, double value, const char* reads) {
  const Json* found = config.find(key);
  if (found == nullptr || (found->is_number() && found->get<double>() == value)) return;
  config.reject(key, "invalid value", cat("that of ", reads, ", ", value), shown(*found));
}

}  // namespace

ModelDescription read_gpt_neox(ConfigReader& config, Problems& problems, const TensorNames* names) {
  Sizes s = read_sizes(config, problems, {});
  const double std = config.number("initializer_range", 0.0, 0.02);
  const nn::NormConfig norm{
      .kind = nn::NormKind::layer, .epsilon = config.positive("layer_norm_eps", 1e-5), .bias = true};
  const bool tied = config.flag("tie_word_embeddings", false);
  const bool bias = config.flag("attention_bias", true);
  const bool parallel = config.flag("use_parallel_residual", true);
  const std::string act = config.choice("hidden_act", {"gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast"}, "gelu");
  config.only("hidden_dropout", 0.0);
  reject_unsupported(config);

  ModelDescription d;
  d.family = "gpt_neox";
  d.ignored_tensors = {"*rotary_emb.inv_freq", "*.attention.bias", "*.attention.masked_bias"};
  d.unquantized_modules = unquantized_modules(config.json()).value_or(std::vector<std::string>());
  d.max_position = config.integer("max_position_embeddings", 1, kMaxPosition, 2048);
  d.ropes = {read_rope(
      config, s.head_dim,
      {.theta_key = "rotary_emb_base", .partial_key = "rotary_pct", .partial = 0.25, .max_position = d.max_position})};
  // transformers 4 writes these next to its own names.
  expect_same(config, "rope_theta", d.ropes.front().theta, "rotary_emb_base");
  const Json* factor = config.find("partial_rotary_factor");
  const double rotated = static_cast<double>(d.ropes.front().head_dim);
  if (factor != nullptr &&
      (!factor->is_number() || std::floor(factor->get<double>() * static_cast<double>(s.head_dim)) != rotated)) {
    config.reject("partial_rotary_factor", "invalid value", "that of rotary_pct", shown(*factor));
  }
  expect_same(config, "head_dim", static_cast<double>(s.width / s.heads), "hidden_size / num_attention_heads");
  expect_same(config, "num_key_value_heads", static_cast<double>(s.heads), "num_attention_heads");
  if (!problems.empty()) return d;

  const std::string prefix = names != nullptr ? names->prefix_of("embed_in.weight", {"gpt_neox.", ""}) : "gpt_neox.";
  d.embedding = {.vocabulary = s.vocabulary, .width = s.width, .initial_std = std, .table = prefix + "embed_in"};
  d.head = {.vocabulary = s.vocabulary,
            .width = s.width,
            .tied = tied,
            .norm_config = norm,
            .initial_std = std,
            .norm = prefix + "final_layer_norm",
            .output = names != nullptr && names->has("lm_head.weight") ? "lm_head" : "embed_out"};
  std::vector<IndexRange> rows;
  for (std::int64_t head = 0; head < s.heads; ++head) {
    for (std::int64_t part = 0; part < 3; ++part) rows.push_back({(part * s.heads + head) * s.head_dim, s.head_dim});
  }
  for (std::int64_t n = 0; n < s.layers; ++n) {
    const std::string base = cat(prefix, "layers.", n, ".");
    d.blocks.push_back({.attention = {.width = s.width,
                                      .heads = s.heads,
                                      .kv_heads = s.heads,
                                      .head_dim = s.head_dim,
                                      .qkv_bias = bias,
                                      .output_bias = bias,
                                      .norm_config = norm,
                                      .rope_scale = ops::rope_attention_factor(d.ropes.front()),
                                      .initial_std = std,
                                      .output_std = std,
                                      .norm = base + "input_layernorm",
                                      .output = base + "attention.dense",
                                      .fused = base + "attention.query_key_value",
                                      .qkv_rows = rows},
                        .mlp = {.width = s.width,
                                .inner = s.inner,
                                .bias = true,
                                .norm_config = norm,
                                .activation = act == "gelu" ? nn::Activation::gelu : nn::Activation::gelu_tanh,
                                .initial_std = std,
                                .output_std = std,
                                .norm = base + "post_attention_layernorm",
                                .up = base + "mlp.dense_h_to_4h",
                                .down = base + "mlp.dense_4h_to_h",
                                .fused = base + "mlp.dense_h_to_4h"},
                        .residual = parallel ? Residual::parallel : Residual::serial});
  }
  return d;
}

std::string gpt_neox_config_json(const ModelDescription& d, const std::string& stored) {
  io::OrderedJson json = begin_json(d, "GPTNeoXForCausalLM");
  const nn::AttentionConfig& attention = d.blocks.front().attention;
  for (const char* key : {"num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta"}) json.erase(key);
  json["layer_norm_eps"] = attention.norm_config.epsilon;
  json["rotary_emb_base"] = d.ropes.front().theta;
  // transformers truncates head_dim * rotary_pct.
  const auto rotated = static_cast<double>(d.ropes.front().head_dim), of = static_cast<double>(attention.head_dim);
  double part = rotated / of;
  if (std::floor(part * of) < rotated) part = std::nextafter(part, 1.0);
  json["rotary_pct"] = part;
  json["use_parallel_residual"] = d.blocks.front().residual == Residual::parallel;
  json["attention_bias"] = attention.qkv_bias;
  json["attention_dropout"] = 0.0;
  json["hidden_dropout"] = 0.0;
  json["hidden_act"] = d.blocks.front().mlp.activation == nn::Activation::gelu ? "gelu" : "gelu_pytorch_tanh";
  return end_json(std::move(json), d, stored);
}

}  // namespace hawser::models
