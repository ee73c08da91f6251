// Models with blocks of other kinds than Llama's, described as data alone: those of tests/golden/blocks.
#pragma once

#include "blocks.h"

namespace hawser::testing::blocks {

// `p`: what the names of its Linears begin with.
inline nn::MlpConfig gelu_mlp(const std::string& norm, const std::string& p, bool bias) {
  return {.width = kWidth,
          .inner = kInner,
          .bias = bias,
          .norm_config = kLayerNorm,
          .activation = nn::Activation::gelu,
          .norm = norm,
          .up = p + "dense_h_to_4h",
          .down = p + "dense_4h_to_h",
          .fused = p + "dense_h_to_4h"};
}

// LayerNorm, GELU, parallel residual, half of each head rotated; in the file each head's q, k and v are side by side.
inline models::ModelDescription neox() {
  models::ModelDescription d;
  d.family = "gpt_neox";
  d.embedding = {.vocabulary = kVocabulary, .width = kWidth, .table = "gpt_neox.embed_in"};
  std::vector<IndexRange> rows;
  for (std::int64_t head = 0; head < kHeads; ++head) {
    for (std::int64_t part = 0; part < 3; ++part) rows.push_back({(part * kHeads + head) * kHeadDim, kHeadDim});
  }
  for (int b = 0; b < 2; ++b) {
    const std::string p = cat("gpt_neox.layers.", b, ".");
    d.blocks.push_back({.attention = {.width = kWidth,
                                      .heads = kHeads,
                                      .kv_heads = kHeads,
                                      .head_dim = kHeadDim,
                                      .qkv_bias = true,
                                      .output_bias = true,
                                      .norm_config = kLayerNorm,
                                      .norm = p + "input_layernorm",
                                      .output = p + "attention.dense",
                                      .fused = p + "attention.query_key_value",
                                      .qkv_rows = rows},
                        .mlp = gelu_mlp(p + "post_attention_layernorm", p + "mlp.", true),
                        .residual = models::Residual::parallel});
  }
  d.head = {.vocabulary = kVocabulary,
            .width = kWidth,
            .norm_config = kLayerNorm,
            .norm = "gpt_neox.final_layer_norm",
            .output = "lm_head"};
  d.ropes = {{.theta = 10000.0, .head_dim = kHeadDim / 2}};
  return d;
}

// The same model with interleaved rotation (GPT-J): dims i and i + 3 of the file's q and k, which are rotated together,
// are dims 2i and 2i + 1.
inline models::ModelDescription interleaved_neox() {
  models::ModelDescription d = neox();
  d.ropes[0].interleaved = true;
  constexpr std::int64_t kPairs = kHeadDim / 4;
  for (models::BlockDescription& block : d.blocks) {
    std::vector<IndexRange> rows;
    for (const IndexRange& head : block.attention.qkv_rows) {
      const bool rotated = head.begin < 2 * kHeads * kHeadDim;  // of q or k
      for (std::int64_t dim = 0; dim < kHeadDim; ++dim) {
        const bool moves = rotated && dim < 2 * kPairs;
        rows.push_back({head.begin + (moves ? dim % kPairs * 2 + dim / kPairs : dim), 1});
      }
    }
    block.attention.qkv_rows = rows;
  }
  return d;
}

// LayerNorm, GELU by tanh, learned positions, no RoPE, a tied head; the file's weights are transposed.
inline models::ModelDescription gpt2() {
  models::ModelDescription d;
  d.family = "gpt2";
  d.embedding = {.vocabulary = kVocabulary,
                 .width = kWidth,
                 .table = "transformer.wte",
                 .positions = "transformer.wpe",
                 .max_position = 64};
  for (int b = 0; b < 2; ++b) {
    const std::string p = cat("transformer.h.", b, ".");
    d.blocks.push_back({.attention = {.width = kWidth,
                                      .heads = kHeads,
                                      .kv_heads = kHeads,
                                      .head_dim = kHeadDim,
                                      .qkv_bias = true,
                                      .output_bias = true,
                                      .norm_config = kLayerNorm,
                                      .transposed = true,
                                      .rope = std::nullopt,
                                      .norm = p + "ln_1",
                                      .output = p + "attn.c_proj",
                                      .fused = p + "attn.c_attn"},
                        .mlp = {.width = kWidth,
                                .inner = kInner,
                                .bias = true,
                                .norm_config = kLayerNorm,
                                .transposed = true,
                                .activation = nn::Activation::gelu_tanh,
                                .norm = p + "ln_2",
                                .up = p + "mlp.c_fc",
                                .down = p + "mlp.c_proj",
                                .fused = p + "mlp.c_fc"}});
  }
  d.head = {.vocabulary = kVocabulary,
            .width = kWidth,
            .tied = true,
            .norm_config = kLayerNorm,
            .norm = "transformer.ln_f",
            .output = "lm_head"};
  return d;
}

// Norms before and after each layer and of q and k, whose factor is 1 + weight; GELU gate; a factor of the embeddings;
// a window and another RoPE in the first block; an odd width; a tied head.
inline models::ModelDescription gemma3() {
  constexpr std::int64_t kOddWidth = 33, kGemmaHeadDim = 10;
  constexpr nn::NormConfig kNorm{.epsilon = 1e-6, .unit_offset = true};
  models::ModelDescription d;
  d.family = "gemma3_text";
  d.embedding = {.vocabulary = kVocabulary,
                 .width = kOddWidth,
                 .table = "model.embed_tokens",
                 .scale = std::sqrt(static_cast<double>(kOddWidth))};
  for (int b = 0; b < 2; ++b) {
    const std::string p = cat("model.layers.", b, "."), a = p + "self_attn.", m = p + "mlp.";
    d.blocks.push_back({.attention = {.width = kOddWidth,
                                      .heads = kHeads,
                                      .kv_heads = 1,
                                      .head_dim = kGemmaHeadDim,
                                      .norm_config = kNorm,
                                      .norm_place = nn::NormPlace::sandwich,
                                      .qk_norm = kNorm,
                                      .rope = b,
                                      .window = b == 0 ? 5 : 0,
                                      .scale = 1 / std::sqrt(14.0),
                                      .norm = p + "input_layernorm",
                                      .q = a + "q_proj",
                                      .k = a + "k_proj",
                                      .v = a + "v_proj",
                                      .output = a + "o_proj",
                                      .fused = a + "qkv_proj",
                                      .post_norm = p + "post_attention_layernorm",
                                      .q_norm = a + "q_norm",
                                      .k_norm = a + "k_norm"},
                        .mlp = {.width = kOddWidth,
                                .inner = kInner,
                                .norm_config = kNorm,
                                .norm_place = nn::NormPlace::sandwich,
                                .activation = nn::Activation::geglu_tanh,
                                .norm = p + "pre_feedforward_layernorm",
                                .gate = m + "gate_proj",
                                .up = m + "up_proj",
                                .down = m + "down_proj",
                                .fused = m + "gate_up_proj",
                                .post_norm = p + "post_feedforward_layernorm"}});
  }
  d.head = {.vocabulary = kVocabulary,
            .width = kOddWidth,
            .tied = true,
            .norm_config = kNorm,
            .norm = "model.norm",
            .output = "lm_head"};
  d.ropes = {{.theta = 1000.0, .head_dim = kGemmaHeadDim},
             {.kind = ops::RopeKind::linear, .theta = 20000.0, .head_dim = kGemmaHeadDim, .factor = 2.0}};
  return d;
}

// Soft-capped scores, with and without a window, and soft-capped logits.
inline models::ModelDescription gemma2() {
  models::ModelDescription d = gemma3();
  for (models::BlockDescription& block : d.blocks) {
    block.attention.qk_norm = {};
    block.attention.rope = 0;
    block.attention.softcap = 1.5;
  }
  d.head.softcap = 2.0;
  d.ropes.resize(1);
  return d;
}

// ALiBi of three heads; no RoPE and no positions of the embedding, but a norm.
inline models::ModelDescription bloom() {
  models::ModelDescription d = neox();
  d.family = "bloom";
  d.embedding.table = "transformer.word_embeddings";
  d.embedding.norm_config = kLayerNorm;
  d.embedding.norm = "transformer.word_embeddings_layernorm";
  for (int b = 0; b < 2; ++b) {
    const std::string p = cat("transformer.h.", b, ".");
    models::BlockDescription& block = d.blocks[static_cast<std::size_t>(b)];
    block.residual = models::Residual::serial;
    block.attention.rope.reset();
    block.attention.alibi = true;
    block.attention.norm = p + "input_layernorm";
    block.attention.output = p + "self_attention.dense";
    block.attention.fused = p + "self_attention.query_key_value";
    block.mlp = gelu_mlp(p + "post_attention_layernorm", p + "mlp.", true);
    block.mlp.inner = 4 * kWidth;
    block.mlp.activation = nn::Activation::gelu_tanh;
  }
  d.head.tied = true;
  d.head.norm = "transformer.ln_f";
  d.ropes.clear();
  return d;
}

// Norms of q and k, grouped heads.
inline models::ModelDescription qwen3() {
  constexpr nn::NormConfig kNorm{.epsilon = 1e-6};
  models::ModelDescription d;
  d.family = "qwen3";
  d.embedding = {.vocabulary = kVocabulary, .width = kWidth, .table = "model.embed_tokens"};
  for (int b = 0; b < 2; ++b) {
    const std::string p = cat("model.layers.", b, "."), a = p + "self_attn.", m = p + "mlp.";
    d.blocks.push_back({.attention = {.width = kWidth,
                                      .heads = 6,
                                      .kv_heads = 2,
                                      .head_dim = 8,
                                      .norm_config = kNorm,
                                      .qk_norm = kNorm,
                                      .norm = p + "input_layernorm",
                                      .q = a + "q_proj",
                                      .k = a + "k_proj",
                                      .v = a + "v_proj",
                                      .output = a + "o_proj",
                                      .fused = a + "qkv_proj",
                                      .q_norm = a + "q_norm",
                                      .k_norm = a + "k_norm"},
                        .mlp = {.width = kWidth,
                                .inner = kInner,
                                .norm_config = kNorm,
                                .norm = p + "post_attention_layernorm",
                                .gate = m + "gate_proj",
                                .up = m + "up_proj",
                                .down = m + "down_proj",
                                .fused = m + "gate_up_proj"}});
  }
  d.head = {
      .vocabulary = kVocabulary, .width = kWidth, .norm_config = kNorm, .norm = "model.norm", .output = "lm_head"};
  d.ropes = {{.theta = 10000.0, .head_dim = 8}};
  return d;
}

// Experts in place of the MLPs; the load-balancing loss is part of the model's.
inline models::ModelDescription mixtral() {
  models::ModelDescription d;
  d.family = "mixtral";
  d.embedding = {.vocabulary = kVocabulary, .width = kWidth, .table = "model.embed_tokens"};
  for (int b = 0; b < 2; ++b) {
    const std::string p = cat("model.layers.", b, "."), moe = p + "block_sparse_moe.";
    d.blocks.push_back({.attention = {.width = kWidth,
                                      .heads = 6,
                                      .kv_heads = 3,
                                      .head_dim = 6,
                                      .norm = p + "input_layernorm",
                                      .q = p + "self_attn.q_proj",
                                      .k = p + "self_attn.k_proj",
                                      .v = p + "self_attn.v_proj",
                                      .output = p + "self_attn.o_proj",
                                      .fused = p + "self_attn.qkv_proj"},
                        .moe = nn::MoeConfig{.width = kWidth,
                                             .experts = 5,
                                             .top_k = 2,
                                             .inner = 22,
                                             .auxiliary_loss = 0.2,
                                             .reported = true,
                                             .norm = p + "post_attention_layernorm",
                                             .router = moe + "gate",
                                             .gate = moe + "experts.{}.w1",
                                             .up = moe + "experts.{}.w3",
                                             .down = moe + "experts.{}.w2"}});
  }
  d.head = {.vocabulary = kVocabulary, .width = kWidth, .norm = "model.norm", .output = "lm_head"};
  d.ropes = {{.theta = 10000.0, .head_dim = 6}};
  return d;
}

// One LayerNorm for attention and MLP, which are side by side; one key head, GELU, no biases, a tied head.
inline models::ModelDescription falcon() {
  models::ModelDescription d;
  d.family = "falcon";
  d.embedding = {.vocabulary = kVocabulary, .width = kWidth, .table = "transformer.word_embeddings"};
  for (int b = 0; b < 2; ++b) {
    const std::string p = cat("transformer.h.", b, ".");
    d.blocks.push_back({.attention = {.width = kWidth,
                                      .heads = kHeads,
                                      .kv_heads = 1,
                                      .head_dim = kHeadDim,
                                      .norm_config = kLayerNorm,
                                      .norm = p + "input_layernorm",
                                      .output = p + "self_attention.dense",
                                      .fused = p + "self_attention.query_key_value"},
                        .mlp = gelu_mlp(p + "input_layernorm", p + "mlp.", false),
                        .residual = models::Residual::parallel_one_norm});
  }
  d.head = {.vocabulary = kVocabulary,
            .width = kWidth,
            .tied = true,
            .norm_config = kLayerNorm,
            .norm = "transformer.ln_f",
            .output = "lm_head"};
  d.ropes = {{.theta = 10000.0, .head_dim = kHeadDim}};
  return d;
}

// One RMS norm for attention and MLP, which are side by side; grouped heads, SwiGLU.
inline models::ModelDescription parallel_llama() {
  models::ModelDescription d = qwen3();
  for (models::BlockDescription& block : d.blocks) {
    block.attention.qk_norm = {};
    block.mlp.norm = block.attention.norm;
    block.residual = models::Residual::parallel_one_norm;
  }
  return d;
}

}  // namespace hawser::testing::blocks
