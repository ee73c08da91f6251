#include "models/other_families.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace hawser::models {
namespace {

using Changes = bool (*)(const Json& value, const ConfigReader& config);

bool is_true(const Json& value, const ConfigReader&) {
  return value == true;
}
bool is_false(const Json& value, const ConfigReader&) {
  return value == false;
}
bool always(const Json&, const ConfigReader&) {
  return true;
}
bool not_zero(const Json& value, const ConfigReader&) {
  return value != 0;
}
bool not_one(const Json& value, const ConfigReader&) {
  return value != 1;
}
bool not_all_full(const Json& value, const ConfigReader&) {
  return !value.is_array() || std::ranges::any_of(value, [](const Json& type) { return type != "full_attention"; });
}
bool unless_unused(const Json&, const ConfigReader& config) {
  const Json* use = config.find("use_sliding_window");
  return use == nullptr || *use != false;
}
bool not_hidden_act(const Json& value, const ConfigReader& config) {
  const Json* act = config.find("hidden_act");
  return act != nullptr ? value != *act : value != "silu";
}

struct OtherKey {
  const char* key;
  std::vector<const char*> readers;  // the families that read it
  Changes changes;                   // whether the value would change a model of a family that reads it
};

const std::vector<OtherKey>& other_keys() {
  static const std::vector<OtherKey> keys = {
      {"sliding_window", {"mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma3_text"}, unless_unused},
      {"sliding_window_pattern", {"gemma3_text"}, always},
      {"layer_types", {"qwen2", "qwen3", "gemma3_text", "mistral", "mixtral", "qwen3_moe"}, not_all_full},
      {"use_sliding_window", {"qwen2", "qwen3", "qwen3_moe", "mistral", "mixtral"}, is_true},
      {"use_sliding_window", {"llama", "qwen2", "qwen3", "qwen3_moe", "gemma3_text", "gpt_neox"}, is_false},
      {"num_local_experts", {"mixtral", "qwen3_moe"}, not_zero},
      {"num_experts", {"mixtral", "qwen3_moe"}, not_zero},
      {"n_routed_experts", {}, not_zero},
      {"query_pre_attn_scalar", {"gemma3_text"}, always},
      {"rope_local_base_freq", {"gemma3_text"}, always},
      {"hidden_activation", {"gemma3_text"}, not_hidden_act},
      {"attn_logit_softcapping", {"gemma3_text"}, always},
      {"final_logit_softcapping", {"gemma3_text"}, always},
      {"attention_bias", {"llama", "qwen2", "qwen3", "qwen3_moe", "gemma3_text", "gpt_neox"}, is_true},
      {"attention_bias", {"llama", "mistral", "mixtral", "qwen3", "qwen3_moe", "gemma3_text", "gpt_neox"}, is_false},
      {"mlp_bias", {"llama"}, is_true},
      {"use_qk_norm", {}, is_true},
      {"qk_layernorm", {}, is_true},
      {"alibi", {}, is_true},
      {"use_parallel_residual", {"gpt_neox"}, is_true},
      {"rotary_pct", {"gpt_neox"}, not_one},
      {"embedding_multiplier", {}, not_one},
      {"residual_multiplier", {}, not_one},
      {"attention_multiplier", {}, not_one},
      {"logits_scaling", {}, not_one},
  };
  return keys;
}

struct OtherTensor {
  const char* name;  // in block 0
  bool (*has)(const BlockDescription& block);
};

constexpr const char* kFusedExperts = "mlp.experts.gate_up_proj";

std::string of_first_expert(const std::string& pattern) {
  const std::size_t at = pattern.find("{}");
  return at == std::string::npos ? pattern : cat(pattern.substr(0, at), 0, pattern.substr(at + 2), ".weight");
}

constexpr std::array<OtherTensor, 10> kOtherTensors{{
    {"self_attn.q_norm.weight", [](const BlockDescription& b) { return b.attention.qk_norm.has_value(); }},
    {"self_attn.q_proj.weight", [](const BlockDescription& b) { return !b.attention.q.empty(); }},
    {"self_attn.q_proj.bias", [](const BlockDescription& b) { return b.attention.qkv_bias; }},
    {"self_attn.o_proj.bias", [](const BlockDescription& b) { return b.attention.output_bias; }},
    {"pre_feedforward_layernorm.weight", [](const BlockDescription& b) { return !b.mlp.post_norm.empty(); }},
    {"mlp.gate_proj.weight", [](const BlockDescription& b) { return !b.moe && !b.mlp.gate.empty(); }},
    {"mlp.gate.weight", [](const BlockDescription& b) { return b.moe && b.moe->router.ends_with("mlp.gate"); }},
    {kFusedExperts, [](const BlockDescription&) { return false; }},
    {"block_sparse_moe.gate.weight",
     [](const BlockDescription& b) { return b.moe && b.moe->router.ends_with("block_sparse_moe.gate"); }},
    {"attention.query_key_value.weight", [](const BlockDescription& b) { return b.attention.q.empty(); }},
}};

}  // namespace

void reject_other_keys(ConfigReader& config, const std::string& family) {
  for (const OtherKey& other : other_keys()) {
    const bool reads = std::ranges::find(other.readers, family) != other.readers.end();
    const Json* value = config.find(other.key);
    if (reads || value == nullptr || !other.changes(*value, config)) continue;
    config.reject(other.key, "a key of another family", cat("none with model_type ", family), shown(*value));
  }
}

void reject_other_tensors(ConfigReader& config, const ModelDescription& d, const TensorNames& names) {
  if (d.blocks.empty()) return;
  for (const OtherTensor& other : kOtherTensors) {
    const BlockDescription& block = d.blocks.front();
    if (other.has(block)) continue;
    // Experts that are there in the family's own form, too: check_weights compares both.
    if (block.moe && std::string_view(other.name) == kFusedExperts && names.has(of_first_expert(block.moe->gate)))
      continue;
    for (const char* prefix : {"model.", "gpt_neox.", ""}) {
      const std::string name = cat(prefix, "layers.0.", other.name);
      if (!names.has(name)) continue;
      config.reject("model_type", "the weights are of another family", cat("no ", name, " with model_type ", d.family),
                    "one");
      return;
    }
  }
}

}  // namespace hawser::models
