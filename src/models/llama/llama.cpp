#include "models/llama/llama.h"

#include <nlohmann/json.hpp>

namespace hawser::models {
namespace {

// Bounds that keep products of two sizes far below 2^63; the total number of parameters is checked separately.
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
constexpr std::int64_t kMaxInner = std::int64_t{1} << 24;
constexpr std::int64_t kMaxHeads = std::int64_t{1} << 14;
constexpr std::int64_t kMaxHeadDim = std::int64_t{1} << 12;
constexpr std::int64_t kMaxLayers = 10'000;
constexpr std::int64_t kMaxVocabulary = (std::int64_t{1} << 31) - 1;  // ids are int32
constexpr std::int64_t kMaxPosition = (std::int64_t{1} << 31) - 1;    // positions too
constexpr double kMaxParameters = 0x1p48;

struct Sizes {
  std::int64_t vocabulary = 0, width = 0, inner = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
};

Sizes read_sizes(ConfigReader& config, Problems& problems) {
  const std::size_t before = problems.size();
  Sizes s;
  s.vocabulary = config.integer("vocab_size", 1, kMaxVocabulary);
  s.width = config.integer("hidden_size", 1, kMaxWidth);
  s.inner = config.integer("intermediate_size", 1, kMaxInner);
  s.layers = config.integer("num_hidden_layers", 1, kMaxLayers);
  s.heads = config.integer("num_attention_heads", 1, kMaxHeads);
  s.kv_heads = config.integer("num_key_value_heads", 1, kMaxHeads, s.heads);
  s.head_dim = config.integer("head_dim", 1, kMaxHeadDim, s.width / s.heads);
  if (problems.size() > before) return s;
  if (s.heads % s.kv_heads != 0) {
    config.reject("num_key_value_heads", "heads do not divide", cat("a divisor of num_attention_heads ", s.heads),
                  cat(s.kv_heads));
  }
  const bool given = config.has("head_dim");
  const char* decides = given ? "head_dim" : "num_attention_heads";
  if (!given && s.width % s.heads != 0) {
    config.reject(decides, "heads do not divide", cat("a divisor of hidden_size ", s.width), cat(s.heads),
                  "head_dim: the size of one head");
  } else if (s.head_dim % 2 != 0 || s.head_dim > kMaxHeadDim) {
    config.reject(decides, "invalid head size", cat("an even number up to ", kMaxHeadDim, ": RoPE rotates pairs"),
                  cat(s.head_dim));
  }
  const double width = static_cast<double>(s.width);
  const double attention = 2.0 * static_cast<double>(s.heads + s.kv_heads) * static_cast<double>(s.head_dim) * width;
  const double mlp = 3.0 * static_cast<double>(s.inner) * width;
  const double all =
      2.0 * static_cast<double>(s.vocabulary) * width + static_cast<double>(s.layers) * (attention + mlp);
  if (all > kMaxParameters) {
    config.reject("num_hidden_layers", "too many parameters", cat("at most ", kMaxParameters), cat(all));
  }
  return s;
}

// Rejects an object per kind of layer, as other families have it: it must not be read as plain RoPE.
bool is_nested(const ConfigReader& rope) {
  for (const auto& [key, value] : rope.json().items()) {
    if (value.is_object()) return true;
  }
  return false;
}

ops::RopeConfig read_rope(ConfigReader& config, std::int64_t head_dim) {
  ops::RopeConfig rope{.head_dim = head_dim};
  const double theta = config.positive("rope_theta", rope.theta);
  rope.theta = theta;
  const Json* scaling = config.find("rope_scaling");
  const bool classic = scaling != nullptr && !(scaling->is_object() && scaling->empty());
  const char* key = classic ? "rope_scaling" : "rope_parameters";
  auto fields = config.object(key);
  if (!fields) return rope;
  if (is_nested(*fields)) {
    config.reject(key, "not supported", "one set of RoPE parameters", "one for each kind of layer");
    return rope;
  }
  rope.theta = fields->positive("rope_theta", theta);
  fields->only("partial_rotary_factor", 1.0);
  // `type` is the name before transformers 4.43; rope_type takes precedence.
  const char* name = fields->has("rope_type") || !fields->has("type") ? "rope_type" : "type";
  const std::string kind = fields->choice(name, {"default", "linear", "llama3"}, "default");
  if (kind == "linear") {
    rope.kind = ops::RopeKind::linear;
    rope.factor = fields->number("factor", 1.0);
  } else if (kind == "llama3") {
    rope.kind = ops::RopeKind::llama3;
    rope.factor = fields->number("factor", 1.0);
    rope.low_freq_factor = fields->positive("low_freq_factor");
    rope.high_freq_factor = fields->positive("high_freq_factor");
    if (rope.low_freq_factor >= rope.high_freq_factor && fields->has("low_freq_factor") &&
        fields->has("high_freq_factor")) {
      fields->reject("high_freq_factor", "invalid value", cat("more than low_freq_factor ", rope.low_freq_factor),
                     cat(rope.high_freq_factor));
    }
    // The top-level key takes precedence, as in transformers 5.
    ConfigReader& from = config.has("original_max_position_embeddings") ? config : *fields;
    rope.original_max_position = from.integer("original_max_position_embeddings", 1, kMaxPosition);
  }
  return rope;
}

// transformers 5 masks nothing but padding if is_causal is false, or null.
void reject_bidirectional(ConfigReader& config) {
  const auto key = config.json().find("is_causal");
  if (key == config.json().end() || *key == true) return;
  config.reject("is_causal", "not supported", "true", shown(*key));
}

}  // namespace

ModelDescription read_llama(ConfigReader& config, Problems& problems, const TensorNames* names) {
  const Sizes s = read_sizes(config, problems);
  const double std = config.number("initializer_range", 0.0, 0.02);
  const double epsilon = config.positive("rms_norm_eps", 1e-6);
  const bool attention_bias = config.flag("attention_bias", false);
  const bool mlp_bias = config.flag("mlp_bias", false);
  const bool tied = config.flag("tie_word_embeddings", false);
  config.choice("hidden_act", {"silu", "swish"}, "silu");  // two names of one function
  config.only("attention_dropout", 0.0);
  reject_bidirectional(config);
  config.only("partial_rotary_factor", 1.0);
  if (config.has("quantization_config")) {
    config.reject("quantization_config", "not supported", "weights that are not quantised", "quantised ones");
  }

  const std::string prefix = names != nullptr ? names->prefix_of("embed_tokens.weight", {"model.", ""}) : "model.";
  const auto block_name = [&](std::int64_t layer, const char* part) {
    return cat(prefix, "layers.", layer, ".", part);
  };

  ModelDescription d;
  d.family = "llama";
  d.ignored_tensors = {"*rotary_emb.inv_freq"};  // old files have this buffer
  d.max_position = config.integer("max_position_embeddings", 1, kMaxPosition, 2048);
  d.ropes = {read_rope(config, s.head_dim)};
  if (!problems.empty()) return d;
  d.embedding = {.vocabulary = s.vocabulary, .width = s.width, .initial_std = std, .table = prefix + "embed_tokens"};
  d.head = {.vocabulary = s.vocabulary,
            .width = s.width,
            .tied = tied,
            .norm_config = {.epsilon = epsilon},
            .initial_std = std,
            .norm = prefix + "norm",
            .output = "lm_head"};
  for (std::int64_t n = 0; n < s.layers; ++n) {
    d.blocks.push_back({.attention = {.width = s.width,
                                      .heads = s.heads,
                                      .kv_heads = s.kv_heads,
                                      .head_dim = s.head_dim,
                                      .qkv_bias = attention_bias,
                                      .output_bias = attention_bias,
                                      .norm_config = {.epsilon = epsilon},
                                      .initial_std = std,
                                      .output_std = std,
                                      .norm = block_name(n, "input_layernorm"),
                                      .q = block_name(n, "self_attn.q_proj"),
                                      .k = block_name(n, "self_attn.k_proj"),
                                      .v = block_name(n, "self_attn.v_proj"),
                                      .output = block_name(n, "self_attn.o_proj"),
                                      .fused = block_name(n, "self_attn.qkv_proj")},
                        .mlp = {.width = s.width,
                                .inner = s.inner,
                                .bias = mlp_bias,
                                .norm_config = {.epsilon = epsilon},
                                .initial_std = std,
                                .output_std = std,
                                .norm = block_name(n, "post_attention_layernorm"),
                                .gate = block_name(n, "mlp.gate_proj"),
                                .up = block_name(n, "mlp.up_proj"),
                                .down = block_name(n, "mlp.down_proj"),
                                .fused = block_name(n, "mlp.gate_up_proj")}});
  }
  return d;
}

std::string llama_config_json(const ModelDescription& d, const std::string& stored) {
  HAWSER_CHECK(d.family == "llama" && !d.blocks.empty(), "a description of ", d.family, " with ", d.blocks.size(),
               " blocks");
  const nn::AttentionConfig& attention = d.blocks.front().attention;
  const nn::MlpConfig& mlp = d.blocks.front().mlp;
  using Ordered = nlohmann::ordered_json;
  Ordered rope_scaling = nullptr;
  if (d.ropes.front().kind == ops::RopeKind::linear) {
    // Both names: transformers before 4.43 reads only `type`.
    rope_scaling = {{"rope_type", "linear"}, {"type", "linear"}, {"factor", d.ropes.front().factor}};
  } else if (d.ropes.front().kind == ops::RopeKind::llama3) {
    rope_scaling = {{"rope_type", "llama3"},
                    {"factor", d.ropes.front().factor},
                    {"low_freq_factor", d.ropes.front().low_freq_factor},
                    {"high_freq_factor", d.ropes.front().high_freq_factor},
                    {"original_max_position_embeddings", d.ropes.front().original_max_position}};
  }
  const Ordered json = {{"architectures", Ordered::array({"LlamaForCausalLM"})},
                        {"model_type", "llama"},
                        {"vocab_size", d.embedding.vocabulary},
                        {"hidden_size", d.embedding.width},
                        {"intermediate_size", mlp.inner},
                        {"num_hidden_layers", d.blocks.size()},
                        {"num_attention_heads", attention.heads},
                        {"num_key_value_heads", attention.kv_heads},
                        {"head_dim", attention.head_dim},
                        {"max_position_embeddings", d.max_position},
                        {"rms_norm_eps", attention.norm_config.epsilon},
                        {"rope_theta", d.ropes.front().theta},
                        {"rope_scaling", rope_scaling},
                        {"attention_bias", attention.qkv_bias},
                        {"attention_dropout", 0.0},
                        {"mlp_bias", mlp.bias},
                        {"hidden_act", "silu"},
                        {"initializer_range", d.embedding.initial_std},
                        {"tie_word_embeddings", d.head.tied},
                        {"bos_token_id", nullptr},
                        {"eos_token_id", nullptr},
                        {"torch_dtype", stored},
                        {"use_cache", true}};
  return json.dump(2) + "\n";
}

}  // namespace hawser::models
