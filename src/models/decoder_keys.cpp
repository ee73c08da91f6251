#include "models/decoder_keys.h"

namespace hawser::models {

void reject_unsupported(ConfigReader& config) {
  config.only("attention_dropout", 0.0);
  // transformers 5 masks nothing but padding if is_causal is false, or null.
  const auto causal = config.json().find("is_causal");
  if (causal != config.json().end() && *causal != true) {
    config.reject("is_causal", "not supported", "true", shown(*causal));
  }
  if (config.flag("use_bidirectional_attention", false)) {
    config.reject("use_bidirectional_attention", "not supported", "false", "true");
  }
  if (config.has("quantization_config") && !unquantized_modules(config.json())) {
    config.reject("quantization_config", "not supported", "weights that are not quantised, or in NF4 by bitsandbytes",
                  "other ones");
  }
}

std::optional<std::vector<std::string>> unquantized_modules(const nlohmann::json& config) {
  const auto found = config.find("quantization_config");
  if (found == config.end() || !found->is_object()) return std::nullopt;
  const auto is = [&](const char* key, const nlohmann::json& value) {
    return found->value(key, nlohmann::json()) == value;
  };
  if (!is("quant_method", "bitsandbytes") || !is("load_in_4bit", true) || !is("bnb_4bit_quant_type", "nf4")) {
    return std::nullopt;
  }
  std::vector<std::string> modules;
  const auto skipped = found->value("llm_int8_skip_modules", nlohmann::json());
  for (const auto& module : skipped.is_array() ? skipped : nlohmann::json::array()) {
    if (module.is_string()) modules.push_back(module);
  }
  return modules;
}

ModelDescription read_decoder(ConfigReader& config, Problems& problems, const TensorNames* names,
                              const DecoderDefaults& defaults, Sizes& s) {
  s = read_sizes(config, problems, defaults.sizes);
  const double std = config.number("initializer_range", 0.0, 0.02);
  const double epsilon = config.positive("rms_norm_eps", defaults.epsilon);
  const bool tied = config.flag("tie_word_embeddings", defaults.tied);
  if (!defaults.own_activation) config.choice("hidden_act", {"silu", "swish"}, "silu");  // two names of one function
  reject_unsupported(config);
  config.only("partial_rotary_factor", 1.0);

  const std::string prefix = names != nullptr ? names->prefix_of("embed_tokens.weight", {"model.", ""}) : "model.";
  const auto block_name = [&](std::int64_t layer, const char* part) {
    return cat(prefix, "layers.", layer, ".", part);
  };

  ModelDescription d;
  d.family = defaults.family;
  d.ignored_tensors = {"*rotary_emb.inv_freq"};  // old files have this buffer
  d.unquantized_modules = unquantized_modules(config.json()).value_or(std::vector<std::string>());
  d.max_position = config.integer("max_position_embeddings", 1, kMaxPosition, defaults.max_position);
  if (!defaults.own_rope) {
    d.ropes = {read_rope(config, s.head_dim, {.theta = defaults.theta, .max_position = d.max_position})};
  }
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
    d.blocks.push_back(
        {.attention = {.width = s.width,
                       .heads = s.heads,
                       .kv_heads = s.kv_heads,
                       .head_dim = s.head_dim,
                       .norm_config = {.epsilon = epsilon},
                       .rope_scale = defaults.own_rope ? 1.0 : ops::rope_attention_factor(d.ropes.front()),
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

io::OrderedJson begin_json(const ModelDescription& d, const std::string& architecture) {
  HAWSER_CHECK(!d.blocks.empty() && !d.ropes.empty(), "a description of ", d.family, " with ", d.blocks.size(),
               " blocks");
  const nn::AttentionConfig& attention = d.blocks.front().attention;
  return {{"architectures", io::OrderedJson::array({architecture})},
          {"model_type", d.family},
          {"vocab_size", d.embedding.vocabulary},
          {"hidden_size", d.embedding.width},
          {"intermediate_size", d.blocks.front().mlp.inner},
          {"num_hidden_layers", d.blocks.size()},
          {"num_attention_heads", attention.heads},
          {"num_key_value_heads", attention.kv_heads},
          {"head_dim", attention.head_dim},
          {"max_position_embeddings", d.max_position},
          {"rms_norm_eps", attention.norm_config.epsilon},
          {"rope_theta", d.ropes.front().theta},
          {"rope_scaling", rope_scaling_json(d.ropes.front())}};
}

std::string end_json(io::OrderedJson json, const ModelDescription& d, const std::string& stored) {
  json["initializer_range"] = d.embedding.initial_std;
  json["tie_word_embeddings"] = d.head.tied;
  json["bos_token_id"] = nullptr;
  json["eos_token_id"] = nullptr;
  json["torch_dtype"] = stored;
  json["use_cache"] = true;
  return json.dump(2) + "\n";
}

}  // namespace hawser::models
