// What each family's config.json says: defaults of absent keys, spellings of transformers 4 and 5,
// windows, experts, RoPE, names of tensors.
#include <cmath>

#include "models/testing/configs.h"

namespace hawser::models {
namespace family_keys_test {

std::vector<std::int64_t> windows(const ModelDescription& d) {
  std::vector<std::int64_t> out;
  for (const BlockDescription& block : d.blocks) out.push_back(block.attention.window);
  return out;
}

using Windows = std::vector<std::int64_t>;

// The values in transformers 5.23's configuration_*.py.
TEST(FamilyKeys, AbsentKeysHaveTheDefaultsOfTransformers) {
  const struct {
    const char* family;
    std::int64_t kv_heads, head_dim, positions;
    double epsilon, theta;
    Windows windows;
    bool tied;
  } kDefaults[] = {
      {"llama", 8, 8, 2048, 1e-6, 1e4, {0, 0, 0, 0}, false},
      {"mistral", 8, 8, 131072, 1e-6, 1e4, {4096, 4096, 4096, 4096}, false},
      {"mixtral", 8, 8, 131072, 1e-5, 1e6, {0, 0, 0, 0}, false},
      {"qwen2", 32, 8, 32768, 1e-6, 1e4, {0, 0, 0, 0}, false},
      {"qwen3", 32, 128, 32768, 1e-6, 1e4, {0, 0, 0, 0}, false},
      {"qwen3_moe", 4, 8, 32768, 1e-6, 1e4, {0, 0, 0, 0}, false},
      {"gemma3_text", 4, 256, 131072, 1e-6, 1e6, {4096, 4096, 4096, 4096}, true},
      {"gpt_neox", 8, 8, 2048, 1e-5, 1e4, {0, 0, 0, 0}, false},
  };
  std::vector<std::string> all;
  for (const auto& of : kDefaults) {
    SCOPED_TRACE(of.family);
    all.emplace_back(of.family);
    const std::string heads = of.kv_heads == 32 ? R"({"num_attention_heads": 32})" : "{}";
    const ModelDescription d = described_as(of.family, heads);
    const nn::AttentionConfig& attention = d.blocks[0].attention;
    EXPECT_EQ(attention.kv_heads, of.kv_heads);
    EXPECT_EQ(attention.head_dim, of.kv_heads == 32 && of.head_dim == 8 ? 2 : of.head_dim);
    EXPECT_EQ(d.max_position, of.positions);
    EXPECT_EQ(attention.norm_config.epsilon, of.epsilon);
    EXPECT_EQ(d.ropes[0].theta, of.theta);
    EXPECT_EQ(windows(d), of.windows);
    EXPECT_EQ(d.head.tied, of.tied);
    EXPECT_EQ(attention.initial_std, 0.02);
  }
  EXPECT_EQ(all, model_types());
}

TEST(FamilyKeys, BlocksAreThoseOfTheFamily) {
  const BlockDescription qwen2 = described_as("qwen2", R"({"num_key_value_heads": 2})").blocks[0];
  EXPECT_TRUE(qwen2.attention.qkv_bias);
  EXPECT_FALSE(qwen2.attention.output_bias);
  EXPECT_FALSE(qwen2.attention.qk_norm);
  const BlockDescription qwen3 =
      described_as("qwen3", R"({"num_key_value_heads": 2, "attention_bias": true, "rms_norm_eps": 1e-4})").blocks[0];
  EXPECT_TRUE(qwen3.attention.qkv_bias && qwen3.attention.output_bias);
  EXPECT_EQ(qwen3.attention.qk_norm->epsilon, 1e-4);
  EXPECT_EQ(qwen3.attention.q_norm, "model.layers.0.self_attn.q_norm");
  EXPECT_FALSE(qwen3.attention.qk_norm->unit_offset);

  const ModelDescription gemma = described_as("gemma3_text", R"({"query_pre_attn_scalar": 25})");
  const BlockDescription& block = gemma.blocks[3];
  EXPECT_EQ(gemma.embedding.scale, 8);
  EXPECT_TRUE(gemma.head.norm_config.unit_offset && block.attention.norm_config.unit_offset &&
              block.mlp.norm_config.unit_offset && block.attention.qk_norm->unit_offset);
  EXPECT_EQ(block.attention.norm_place, nn::NormPlace::sandwich);
  EXPECT_EQ(block.mlp.norm_place, nn::NormPlace::sandwich);
  EXPECT_EQ(block.attention.post_norm, "model.layers.3.post_attention_layernorm");
  EXPECT_EQ(block.mlp.norm, "model.layers.3.pre_feedforward_layernorm");
  EXPECT_EQ(block.mlp.post_norm, "model.layers.3.post_feedforward_layernorm");
  EXPECT_EQ(block.mlp.activation, nn::Activation::geglu_tanh);
  EXPECT_EQ(block.attention.scale, 0.2);

  const ModelDescription neox = described_as("gpt_neox", R"({"hidden_act": "gelu_new", "rotary_pct": 0.5})");
  EXPECT_EQ(neox.blocks[0].residual, Residual::parallel);
  EXPECT_EQ(neox.blocks[0].attention.norm_config.kind, nn::NormKind::layer);
  EXPECT_TRUE(neox.blocks[0].attention.qkv_bias && neox.blocks[0].mlp.bias);
  EXPECT_EQ(neox.blocks[0].mlp.activation, nn::Activation::gelu_tanh);
  EXPECT_EQ(neox.blocks[0].attention.head_dim, 8);
  EXPECT_EQ(neox.ropes[0].head_dim, 4);
  EXPECT_EQ(described_as("gpt_neox", R"({"use_parallel_residual": false})").blocks[0].residual, Residual::serial);
}

TEST(FamilyKeys, Windows) {
  EXPECT_EQ(windows(described_as("mistral", R"({"sliding_window": null})")), Windows({0, 0, 0, 0}));
  EXPECT_EQ(windows(described_as("mistral", R"({"sliding_window": 7})")), Windows({7, 7, 7, 7}));
  EXPECT_EQ(windows(described_as("mixtral", R"({"sliding_window": 7})")), Windows({7, 7, 7, 7}));
  const std::string qwen = R"("num_key_value_heads": 2, "sliding_window": 7)";
  const auto of_qwen = [&](const std::string& family, const std::string& more) {
    return windows(described_as(family, cat("{", qwen, more, "}")));
  };
  for (const char* family : {"qwen2", "qwen3"}) {
    EXPECT_EQ(of_qwen(family, ""), Windows({0, 0, 0, 0}));
    EXPECT_EQ(of_qwen(family, R"(, "use_sliding_window": true)"), Windows({0, 0, 0, 0})) << "from layer 28 on";
    EXPECT_EQ(of_qwen(family, R"(, "use_sliding_window": true, "max_window_layers": 1)"), Windows({0, 7, 7, 7}));
    EXPECT_EQ(of_qwen(family, R"(, "use_sliding_window": true, "max_window_layers": 1, "layer_types":
        ["sliding_attention", "full_attention", "full_attention", "sliding_attention"])"),
              Windows({7, 0, 0, 7}));
  }
  EXPECT_EQ(of_qwen("qwen3_moe", R"(, "use_sliding_window": true, "max_window_layers": 3)"), Windows({7, 7, 7, 7}));
  EXPECT_EQ(windows(described_as("gemma3_text", R"({"sliding_window": 7, "sliding_window_pattern": 2})")),
            Windows({7, 0, 7, 0}));
  // layer_types has precedence.
  EXPECT_EQ(windows(described_as("gemma3_text", R"({"sliding_window": 7, "sliding_window_pattern": 2, "layer_types":
      ["full_attention", "full_attention", "sliding_attention", "full_attention"]})")),
            Windows({0, 0, 7, 0}));
}

TEST(FamilyKeys, Experts) {
  const nn::MoeConfig mixtral = *described_as("mixtral").blocks[2].moe;
  EXPECT_EQ(mixtral.experts, 8);
  EXPECT_EQ(mixtral.top_k, 2);
  EXPECT_EQ(mixtral.inner, 48);
  EXPECT_TRUE(mixtral.normalise_top_k);
  EXPECT_EQ(mixtral.auxiliary_loss, 0.001);
  EXPECT_FALSE(mixtral.reported);
  EXPECT_EQ(mixtral.norm, "model.layers.2.post_attention_layernorm");
  EXPECT_EQ(mixtral.router, "model.layers.2.block_sparse_moe.gate");
  EXPECT_EQ(mixtral.gate, "model.layers.2.block_sparse_moe.experts.{}.w1");
  EXPECT_EQ(mixtral.up, "model.layers.2.block_sparse_moe.experts.{}.w3");
  EXPECT_EQ(mixtral.down, "model.layers.2.block_sparse_moe.experts.{}.w2");
  const ModelDescription qwen = described_as("qwen3_moe", R"({"num_experts": 6, "num_experts_per_tok": 3,
      "moe_intermediate_size": 10, "mlp_only_layers": [3], "decoder_sparse_step": 2, "output_router_logits": true})");
  EXPECT_FALSE(qwen.blocks[0].moe || qwen.blocks[2].moe || qwen.blocks[3].moe);
  const nn::MoeConfig& moe = *qwen.blocks[1].moe;
  EXPECT_EQ(moe.experts, 6);
  EXPECT_EQ(moe.top_k, 3);
  EXPECT_EQ(moe.inner, 10);
  EXPECT_FALSE(moe.normalise_top_k);
  EXPECT_TRUE(moe.reported);
  EXPECT_EQ(moe.router, "model.layers.1.mlp.gate");
  EXPECT_EQ(moe.down, "model.layers.1.mlp.experts.{}.down_proj");
  EXPECT_EQ(described_as("qwen3_moe", R"({"num_local_experts": 9, "num_experts": 9})").blocks[0].moe->experts, 9);
}

TEST(FamilyKeys, RopeOfBothVersions) {
  const std::string yarn = R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512,
                               "beta_fast": 16, "mscale": 0.7, "mscale_all_dim": 0.5, "truncate": false)";
  for (const std::string& key : {std::string(R"("rope_theta": 1e5, "rope_scaling": )") + yarn,
                                 std::string(R"("rope_parameters": )") + yarn + R"(, "rope_theta": 1e5)"}) {
    const ModelDescription d = described_as("mistral", "{" + key + "}}");
    const ops::RopeConfig& rope = d.ropes[0];
    EXPECT_EQ(rope.kind, ops::RopeKind::yarn);
    EXPECT_EQ(rope.theta, 1e5);
    EXPECT_EQ(rope.factor, 4);
    EXPECT_EQ(rope.original_max_position, 512);
    EXPECT_EQ(rope.beta_fast, 16);
    EXPECT_EQ(rope.beta_slow, 1);
    EXPECT_EQ(rope.attention_factor, 0);
    EXPECT_FALSE(rope.truncate);
    const double log4 = std::log(4.0);
    EXPECT_DOUBLE_EQ(d.blocks[0].attention.rope_scale, (0.07 * log4 + 1) / (0.05 * log4 + 1));
  }
  const auto of = [](const std::string& family, const std::string& patch) { return described_as(family, patch); };
  // The original length is the model's, and the factor the quotient of the two, if they are absent or null.
  ops::RopeConfig rope = of("llama", R"({"max_position_embeddings": 3000, "rope_scaling": {"rope_type": "yarn",
      "factor": null, "original_max_position_embeddings": 1000, "attention_factor": 1.25}})")
                             .ropes[0];
  EXPECT_EQ(rope.factor, 3);
  EXPECT_EQ(rope.attention_factor, 1.25);
  rope = of("qwen2", R"({"num_key_value_heads": 2, "rope_scaling": {"type": "yarn", "factor": 2}})").ropes[0];
  EXPECT_EQ(rope.original_max_position, 32768);

  for (const char* patch : {R"({"rope_theta": 5e5, "rope_local_base_freq": 300, "rope_scaling": {"rope_type": "linear",
                                "factor": 8}})",
                            R"({"rope_parameters": {
                                "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 5e5},
                                "sliding_attention": {"rope_type": "default", "rope_theta": 300}}})"}) {
    const ModelDescription d = of("gemma3_text", patch);
    ASSERT_EQ(d.ropes.size(), 2u);
    EXPECT_EQ(d.ropes[0].kind, ops::RopeKind::linear);
    EXPECT_EQ(d.ropes[0].theta, 5e5);
    EXPECT_EQ(d.ropes[1].kind, ops::RopeKind::standard);
    EXPECT_EQ(d.ropes[1].theta, 300);
    EXPECT_EQ(d.ropes[1].head_dim, 256);
  }
  const ModelDescription local = of("gemma3_text", R"({"rope_parameters": {"full_attention": {}}})");
  EXPECT_EQ(local.ropes[0].theta, 1e6);
  EXPECT_EQ(local.ropes[1].theta, 1e4);
  for (const char* patch : {R"({"rotary_pct": 0.75, "rotary_emb_base": 300})",
                            R"({"rope_parameters": {"partial_rotary_factor": 0.75, "rope_theta": 300}})",
                            R"({"rotary_pct": 0.75, "rotary_emb_base": 300, "partial_rotary_factor": 0.75,
                                "rope_theta": 300})"}) {
    EXPECT_EQ(of("gpt_neox", patch).ropes[0].head_dim, 6);
    EXPECT_EQ(of("gpt_neox", patch).ropes[0].theta, 300);
  }
}

// transformers writes each of these prefixes, and none for a base model's folder.
TEST(FamilyKeys, TensorsHaveTheNamesOfTheirFiles) {
  const TensorNames with({"gpt_neox.embed_in.weight", "embed_out.weight"}), without({"embed_in.weight"}),
      recent({"gpt_neox.embed_in.weight", "lm_head.weight"}), base({"embed_tokens.weight"}),
      twice({"gpt_neox.embed_in.weight", "embed_in.weight", "layers.0.input_layernorm.weight"});
  const auto neox = [](const TensorNames* names) {
    const ModelDescription d = described_as("gpt_neox", "{}", names);
    return cat(d.embedding.table, " ", d.head.norm, " ", d.head.output, " ", d.blocks[1].attention.fused);
  };
  const std::string usual =
      "gpt_neox.embed_in gpt_neox.final_layer_norm embed_out gpt_neox.layers.1.attention.query_key_value";
  EXPECT_EQ(neox(nullptr), usual);
  EXPECT_EQ(neox(&with), usual);
  EXPECT_EQ(neox(&without), "embed_in final_layer_norm embed_out layers.1.attention.query_key_value");
  EXPECT_EQ(neox(&twice), neox(&without)) << "the layers decide";
  EXPECT_EQ(neox(&recent),
            "gpt_neox.embed_in gpt_neox.final_layer_norm lm_head gpt_neox.layers.1.attention.query_key_value");
  EXPECT_EQ(described_as("mixtral", "{}", &base).blocks[1].moe->gate, "layers.1.block_sparse_moe.experts.{}.w1");
  EXPECT_EQ(described_as("gemma3_text", "{}", &base).blocks[1].mlp.post_norm, "layers.1.post_feedforward_layernorm");
  const std::vector<std::int64_t> order = [] {
    std::vector<std::int64_t> rows;
    const ModelDescription d = described_as("gpt_neox");
    for (const auto& run : d.blocks[0].attention.qkv_rows) rows.push_back(run.begin);
    return rows;
  }();
  ASSERT_EQ(order.size(), 24u);
  EXPECT_EQ(std::vector(order.begin(), order.begin() + 5), (std::vector<std::int64_t>{0, 64, 128, 8, 72}));
}

// What is written is read as the same model.
TEST(FamilyKeys, ConfigRoundTrip) {
  const char* yarn = R"("rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 100,
                        "beta_slow": 2, "attention_factor": 1.5, "truncate": false})";
  const std::pair<const char*, std::string> cases[] = {
      {"llama", cat(R"({"attention_bias": true, "mlp_bias": true, )", yarn, "}")},
      {"llama", R"({"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 100,
                                     "attention_factor": 0.5}})"},
      {"mistral", R"({"sliding_window": 9, "num_key_value_heads": 2})"},
      {"mistral", R"({"sliding_window": null, "head_dim": 12})"},
      {"mixtral", R"({"sliding_window": 5, "num_local_experts": 5, "router_aux_loss_coef": 0.3,
                      "output_router_logits": true})"},
      {"qwen2", R"({"num_key_value_heads": 2, "use_sliding_window": true, "sliding_window": 5, "layer_types":
                    ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]})"},
      {"qwen3", R"({"num_key_value_heads": 2, "use_sliding_window": true, "max_window_layers": 2,
                    "attention_bias": true})"},
      {"qwen3_moe", R"({"decoder_sparse_step": 2, "norm_topk_prob": true, "use_sliding_window": true})"},
      {"gemma3_text", R"({"sliding_window_pattern": 3, "query_pre_attn_scalar": 100, "attention_bias": true})"},
      {"gemma3_text", R"({"tie_word_embeddings": false, "layer_types": ["full_attention", "sliding_attention",
                          "sliding_attention", "full_attention"], "rope_parameters": {"sliding_attention":
                          {"rope_type": "linear", "factor": 2}}})"},
      {"gemma3_text", R"({"sliding_window_pattern": 1})"},
      {"gpt_neox", R"({"num_attention_heads": 4, "hidden_size": 56, "rotary_pct": 0.43, "rotary_emb_base": 77,
                       "use_parallel_residual": false, "attention_bias": false, "hidden_act": "gelu_new"})"},
  };
  for (const auto& [family, patch] : cases) {
    const ModelDescription d = described_as(family, patch);
    const std::string text = config_json(d, DType::bf16);
    Problems problems;
    const ModelDescription again = describe_unchecked(text, "config.json", problems);
    EXPECT_EQ(problems.lines(), "") << text;
    ASSERT_FALSE(again.blocks.empty());
    EXPECT_EQ(config_json(again, DType::bf16), text);
    EXPECT_EQ(description_changes(d, again), "");
    EXPECT_EQ(windows(again), windows(d));
    EXPECT_EQ(again.ropes.back().head_dim, d.ropes.back().head_dim);
    EXPECT_EQ(again.ropes.back().truncate, d.ropes.back().truncate);
    EXPECT_EQ(again.ropes.back().attention_factor, d.ropes.back().attention_factor);
    EXPECT_EQ(again.blocks[0].attention.rope_scale, d.blocks[0].attention.rope_scale);
    for (std::size_t b = 0; b < d.blocks.size(); ++b) {
      EXPECT_EQ(again.blocks[b].moe.has_value(), d.blocks[b].moe.has_value());
      EXPECT_EQ(again.blocks[b].attention.rope, d.blocks[b].attention.rope);
      EXPECT_EQ(again.blocks[b].attention.scale, d.blocks[b].attention.scale);
    }
  }
}

TEST(FamilyKeys, ChangesOfWhatIsRead) {
  const auto changes = [](const std::string& family, const std::string& before, const std::string& now) {
    return description_changes(described_as(family, before), described_as(family, now));
  };
  EXPECT_EQ(changes("mistral", R"({"sliding_window": 7})", R"({"sliding_window": null})"),
            "sliding_window was 7 and is null");
  EXPECT_EQ(changes("mixtral", "{}", R"({"num_experts_per_tok": 1})"), "num_experts_per_tok was 2 and is 1");
  EXPECT_EQ(changes("qwen3_moe", R"({"num_experts": 8})", R"({"num_local_experts": 8, "norm_topk_prob": true})"),
            "norm_topk_prob was false and is true");
  EXPECT_EQ(changes("gemma3_text", "{}", R"({"query_pre_attn_scalar": 64})"),
            "query_pre_attn_scalar was 256 and is 64");
  EXPECT_EQ(changes("gemma3_text", "{}", R"({"rope_local_base_freq": 20000})"),
            "rope_local_base_freq was 10000.0 and is 20000.0");
  EXPECT_EQ(changes("gpt_neox", "{}", R"({"use_parallel_residual": false})"),
            "use_parallel_residual was true and is false");
  EXPECT_EQ(
      changes("gpt_neox", "{}", R"({"rope_parameters": {"partial_rotary_factor": 0.25}, "layer_norm_eps": 1e-4})"),
      "layer_norm_eps was 1e-05 and is 0.0001");
  const auto yarn = [](const char* rest) {
    return cat(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 100)", rest,
               "}}");
  };
  EXPECT_NE(changes("llama", yarn(""), yarn(R"(, "truncate": false)")), "");
  EXPECT_TRUE(description_changes(described_as("llama"), described_as("mistral"))
                  .starts_with("model_type was \"llama\" and is \"mistral\", "));
}

TEST(FamilyKeys, PositionsOfYarn) {
  const ModelDescription d = described_as("qwen3", R"({"num_key_value_heads": 2, "max_position_embeddings": 40960,
      "rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}})");
  EXPECT_EQ(beyond_positions(d, 131072), "");
  EXPECT_NE(beyond_positions(d, 131073), "");
  // max_position_embeddings may be the extended number already.
  const ModelDescription extended = described_as("qwen3", R"({"num_key_value_heads": 2,
      "max_position_embeddings": 131072,
      "rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 32768}})");
  EXPECT_EQ(beyond_positions(extended, 131072), "");
  EXPECT_NE(beyond_positions(extended, 131073), "");
}

}  // namespace family_keys_test
}  // namespace hawser::models
