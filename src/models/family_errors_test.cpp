// What is rejected of a family's config.json and weights: one line each.
#include "models/testing/configs.h"

namespace hawser::models {
namespace family_errors_test {

TEST(FamilyErrors, EachErrorIsOneLineWithItsKey) {
  const struct {
    const char *family, *patch, *line;  // after "config.json: "
  } kCases[] = {
      {"gemma3", "{}",
       "model family not supported (expected llama, mistral, mixtral, qwen2, qwen3, qwen3_moe, gemma3_text, gpt_neox, "
       "got 'gemma3') at model_type; try its text model alone, saved as gemma3_text: docs/families.md"},
      {"mistral", R"({"num_local_experts": 8})",
       "a key of another family (expected none with model_type mistral, got 8) at num_local_experts"},
      {"llama", R"({"sliding_window": 4096})",
       "a key of another family (expected none with model_type llama, got 4096) at sliding_window"},
      {"llama", R"({"use_qk_norm": true})",
       "a key of another family (expected none with model_type llama, got true) at use_qk_norm"},
      {"mistral", R"({"attention_bias": true})",
       "a key of another family (expected none with model_type mistral, got true) at attention_bias"},
      {"qwen3", R"({"num_key_value_heads": 2, "query_pre_attn_scalar": 100})",
       "a key of another family (expected none with model_type qwen3, got 100) at query_pre_attn_scalar"},
      {"gemma3_text", R"({"hidden_act": "silu", "hidden_activation": "silu"})",
       "not supported (expected gelu_pytorch_tanh or gelu_new, got 'silu') at hidden_activation"},
      {"gemma3_text", R"({"attn_logit_softcapping": 50.0})",
       "not supported (expected null, got 50.0) at attn_logit_softcapping"},
      {"gemma3_text", R"({"final_logit_softcapping": 30.0})",
       "not supported (expected null, got 30.0) at final_logit_softcapping"},
      {"gemma3_text", R"({"use_bidirectional_attention": true})",
       "not supported (expected false, got true) at use_bidirectional_attention"},
      {"gemma3_text", R"({"rope_parameters": {"rope_theta": 7}})",
       "not supported (expected one set of RoPE parameters for each kind of layer, got one set) at rope_parameters"},
      {"gemma3_text", R"({"sliding_window": null})",
       "sliding layers without a window (expected a whole number above 0, got none) at sliding_window"},
      {"qwen2", R"({"num_key_value_heads": 2, "layer_types": ["full_attention"]})",
       "invalid value (expected a list of full_attention and sliding_attention, one for each of 4 layers, got a list "
       "of 1) at layer_types"},
      {"mistral", R"({"layer_types": ["full_attention", "full_attention"]})",
       "not supported (expected sliding_attention in all layers, got others) at layer_types"},
      {"mixtral", R"({"router_jitter_noise": 0.1})", "not supported (expected 0, got 0.1) at router_jitter_noise"},
      {"mixtral", R"({"num_experts_per_tok": 9})",
       "invalid value (expected a whole number from 1 to 8, got 9) at num_experts_per_tok"},
      {"qwen3_moe", R"({"num_experts": 9, "num_local_experts": 8})",
       "invalid value (expected as many as num_local_experts, 8, got 9) at num_experts"},
      {"qwen3_moe", R"({"mlp_only_layers": [0, 1, 2, 3]})",
       "no layer has experts (expected model_type qwen3 for a model without experts) at mlp_only_layers"},
      {"qwen3_moe", R"({"mlp_only_layers": [-1]})",
       "invalid value (expected a list of whole numbers from 0 to 10000, got a list with -1) at mlp_only_layers"},
      {"qwen3_moe", R"({"mlp_only_layers": [0, "1"]})",
       "invalid value (expected a list of whole numbers from 0 to 10000, got a list with '1') at mlp_only_layers"},
      {"qwen3_moe", R"({"mlp_only_layers": 3})",
       "invalid value (expected a list of whole numbers from 0 to 10000, got 3) at mlp_only_layers"},
      {"qwen3_moe", R"({"decoder_sparse_step": 5})",
       "no layer has experts (expected model_type qwen3 for a model without experts) at decoder_sparse_step"},
      {"gpt_neox", R"({"hidden_dropout": 0.1})", "not supported (expected 0, got 0.1) at hidden_dropout"},
      {"gpt_neox", R"({"rotary_pct": 0.4, "rope_scaling": {"type": "linear", "factor": 2.0}})",
       "invalid value (expected a part of 8 dims that is an even number, got 0.4) at rotary_pct"},
      {"gpt_neox", R"({"rotary_pct": 0.4})",
       "invalid value (expected a part of 8 dims that is an even number, got 0.4) at rotary_pct"},
      {"gpt_neox", R"({"hidden_size": 0})",
       "invalid value (expected a whole number from 1 to 1048576, got 0) at hidden_size"},
      {"gpt_neox", R"({"rope_theta": 500})",
       "invalid value (expected that of rotary_emb_base, 10000, got 500) at rope_theta"},
      {"gpt_neox", R"({"num_key_value_heads": 4})",
       "invalid value (expected that of num_attention_heads, 8, got 4) at num_key_value_heads"},
      {"gpt_neox", R"({"num_experts": 4})",
       "a key of another family (expected none with model_type gpt_neox, got 4) at num_experts"},
      {"qwen2", R"({"num_key_value_heads": 2, "attention_bias": false})",
       "a key of another family (expected none with model_type qwen2, got false) at attention_bias"},
      {"llama", R"({"rope_scaling": {"rope_type": "yarn"}})",
       "missing key (expected a number, at least 1) at rope_scaling.factor"},
  };
  for (const auto& [family, patch, line] : kCases) {
    const Reading reading = read_as(family, patch);
    EXPECT_EQ(reading.problems, cat("config.json: ", line)) << family << " " << patch;
    EXPECT_TRUE(reading.description.blocks.empty());
  }
}

// Values that say what the family does anyway.
TEST(FamilyErrors, KeysOfOtherFamiliesMaySayNothing) {
  described_as("llama", R"({"sliding_window": null, "num_experts": 0, "layer_types": ["full_attention"],
      "attn_logit_softcapping": null, "rotary_pct": 1.0, "use_parallel_residual": false})");
  described_as("llama", R"({"sliding_window": 4096, "use_sliding_window": false})");
  described_as("mistral", R"({"attention_bias": false, "mlp_bias": false, "layer_types": ["sliding_attention"]})");
  described_as("qwen2", R"({"num_key_value_heads": 2, "attention_bias": true})");
}

TEST(FamilyErrors, TensorsOfAnotherFamilyAreOneLine) {
  const struct {
    const char *family, *patch, *tensor;
  } kCases[] = {
      {"llama", "{}", "model.layers.0.self_attn.q_norm.weight"},
      {"llama", "{}", "model.layers.0.self_attn.q_proj.bias"},
      {"mistral", "{}", "layers.0.block_sparse_moe.gate.weight"},
      {"mixtral", "{}", "model.layers.0.mlp.gate_proj.weight"},
      {"mixtral", "{}", "model.layers.0.mlp.experts.gate_up_proj"},
      {"qwen3", R"({"num_key_value_heads": 2})", "model.layers.0.mlp.gate.weight"},
      {"qwen3", R"({"num_key_value_heads": 2})", "model.layers.0.pre_feedforward_layernorm.weight"},
      {"qwen3_moe", "{}", "model.layers.0.self_attn.o_proj.bias"},
      {"gemma3_text", "{}", "gpt_neox.layers.0.attention.query_key_value.weight"},
      {"gpt_neox", "{}", "model.layers.0.self_attn.q_proj.weight"},
  };
  for (const auto& [family, patch, tensor] : kCases) {
    const TensorNames names({"model.embed_tokens.weight", tensor});
    EXPECT_EQ(read_as(family, patch, &names).problems,
              cat("config.json: the weights are of another family (expected no ", tensor, " with model_type ", family,
                  ", got one) at model_type"));
  }
}

TEST(FamilyErrors, ExpertsMayBeThereInBothForms) {
  const TensorNames both({"model.embed_tokens.weight", "model.layers.0.mlp.experts.gate_up_proj",
                          "model.layers.0.mlp.experts.0.gate_proj.weight", "model.layers.0.mlp.gate.weight"});
  const TensorNames fused(
      {"model.embed_tokens.weight", "model.layers.0.mlp.experts.gate_up_proj", "model.layers.0.mlp.gate.weight"});
  EXPECT_EQ(read_as("qwen3_moe", "{}", &both).problems, "");
  EXPECT_NE(read_as("qwen3_moe", "{}", &fused).problems.find("the weights are of another family"), std::string::npos);
}

// Layers 0 and 2 of 4 have experts in the weights.
TEST(FamilyErrors, LayersWithExpertsAreThoseOfTheWeights) {
  const auto problems = [](const std::string& patch, std::vector<std::string> more = {}) {
    std::vector<std::string> tensors = std::move(more);
    for (const int layer : {0, 2}) tensors.push_back(cat("model.layers.", layer, ".mlp.gate.weight"));
    for (const int layer : {1, 3}) tensors.push_back(cat("model.layers.", layer, ".mlp.gate_proj.weight"));
    const TensorNames names(tensors);
    return read_as("qwen3_moe", patch, &names).problems;
  };
  EXPECT_EQ(problems(R"({"mlp_only_layers": [1, 3]})"), "");
  const std::string differ = "config.json: layers without experts differ from the weights (expected [1, 3], got ";
  EXPECT_EQ(problems("{}"), differ + "[]) at mlp_only_layers");
  EXPECT_EQ(problems(R"({"mlp_only_layers": [0, 7]})"), differ + "[0]) at mlp_only_layers");
  EXPECT_EQ(problems(R"({"mlp_only_layers": [0, 1, 2, 3]})"), differ + "[0, 1, 2, 3]) at mlp_only_layers");
  EXPECT_EQ(problems(R"({"decoder_sparse_step": 2})"),
            differ + "[0, 2]) at mlp_only_layers; try decoder_sparse_step: 1 with this list");
  EXPECT_EQ(problems(R"({"mlp_only_layers": [-1]})"),
            "config.json: invalid value (expected a list of whole numbers from 0 to 10000, got a list with -1) at "
            "mlp_only_layers");
  // A layer without either is missing: no matter of this key.
  const TensorNames none({"model.embed_tokens.weight", "model.layers.0.mlp.gate.weight"});
  EXPECT_EQ(read_as("qwen3_moe", "{}", &none).problems, "");
}

// 4 blocks of 8 experts with 3 tensors each would be 96 lines.
TEST(FamilyErrors, MissingExpertsAreOneLine) {
  Problems problems;
  ModelDescription d = read_description(golden("gqa"), problems);
  const std::size_t blocks = d.blocks.size();
  for (std::size_t b = 0; b < blocks; ++b) {
    nn::MlpConfig& mlp = d.blocks[b].mlp;
    mlp.gate = cat("model.layers.", b, ".mlp.experts.0.gate_proj");
    mlp.up = cat("model.layers.", b, ".mlp.experts.12.up_proj");
  }
  auto folder = open_weights(golden("gqa"));
  check_weights(Model(std::move(d)), folder, problems);
  std::vector<std::string> lines;
  for (const Problem& problem : problems.all()) {
    if (problem.what.find("missing") != std::string::npos) lines.push_back(problem.line());
  }
  ASSERT_EQ(lines.size(), 1u) << problems.lines();
  EXPECT_EQ(lines[0], golden("gqa") +
                          ": tensors of experts are missing (expected 4, got 0) at "
                          "model.layers.0.mlp.experts.0.gate_proj.weight");
}

}  // namespace family_errors_test
}  // namespace hawser::models
