// BERT and RoBERTa as data.
#pragma once

#include "blocks.h"

namespace hawser::testing::blocks {

struct Sizes {
  std::int64_t vocabulary = kVocabulary, width = kWidth, heads = kHeads, inner = kInner, positions = 64;
  int blocks = 2;
};

// Without a head: attention to later tokens, norms of sums, learned positions, token types and a norm of the
// embeddings.
inline models::ModelDescription bert(const Sizes& s = {}) {
  models::ModelDescription d;
  d.family = "bert";
  d.embedding = {.vocabulary = s.vocabulary,
                 .width = s.width,
                 .table = "bert.embeddings.word_embeddings",
                 .positions = "bert.embeddings.position_embeddings",
                 .max_position = s.positions,
                 .types = "bert.embeddings.token_type_embeddings",
                 .type_count = 2,
                 .norm_config = kLayerNorm,
                 .norm = "bert.embeddings.LayerNorm"};
  for (int b = 0; b < s.blocks; ++b) {
    const std::string p = cat("bert.encoder.layer.", b, "."), a = p + "attention.";
    d.blocks.push_back({.attention = {.width = s.width,
                                      .heads = s.heads,
                                      .kv_heads = s.heads,
                                      .head_dim = s.width / s.heads,
                                      .qkv_bias = true,
                                      .output_bias = true,
                                      .norm_config = kLayerNorm,
                                      .norm_place = nn::NormPlace::post,
                                      .rope = std::nullopt,
                                      .causal = false,
                                      .norm = a + "output.LayerNorm",
                                      .q = a + "self.query",
                                      .k = a + "self.key",
                                      .v = a + "self.value",
                                      .output = a + "output.dense",
                                      .fused = a + "self.qkv"},
                        .mlp = {.width = s.width,
                                .inner = s.inner,
                                .bias = true,
                                .norm_config = kLayerNorm,
                                .norm_place = nn::NormPlace::post,
                                .activation = nn::Activation::gelu,
                                .norm = p + "output.LayerNorm",
                                .up = p + "intermediate.dense",
                                .down = p + "output.dense",
                                .fused = p + "intermediate.dense"}});
  }
  d.tables = {nn::kTokenTypes};
  return d;
}

// One type for all tokens, and positions from row 2 of their table on.
inline models::ModelDescription roberta(const Sizes& s = {}) {
  models::ModelDescription d = bert(s);
  d.family = "roberta";
  d.tables.clear();
  d.embedding.max_position += 2;
  d.embedding.position_offset = 2;
  d.embedding.type_count = 1;
  const auto rename = [](std::string& name) { name.replace(0, std::string("bert").size(), "roberta"); };
  nn::EmbeddingConfig& e = d.embedding;
  for (std::string* const name : {&e.table, &e.positions, &e.types, &e.norm}) rename(*name);
  for (models::BlockDescription& block : d.blocks) {
    nn::AttentionConfig& a = block.attention;
    nn::MlpConfig& m = block.mlp;
    for (std::string* const name : {&a.norm, &a.q, &a.k, &a.v, &a.output, &a.fused}) rename(*name);
    for (std::string* const name : {&m.norm, &m.up, &m.down, &m.fused}) rename(*name);
  }
  return d;
}

// The head of masked tokens: a transform, a norm, and a bias; its weight is the embedding's.
inline nn::HeadConfig head_of_masks(const Sizes& s = {}) {
  return {.vocabulary = s.vocabulary,
          .width = s.width,
          .tied = true,
          .norm_config = kLayerNorm,
          .norm = "cls.predictions.transform.LayerNorm",
          .output = "cls.predictions",
          .transform = nn::HeadTransformConfig{.dense = "cls.predictions.transform.dense"},
          .bias = true};
}

inline models::ModelDescription masked_bert() {
  models::ModelDescription d = bert();
  d.head = head_of_masks();
  return d;
}

inline models::ModelDescription masked_roberta() {
  models::ModelDescription d = roberta();
  d.head = head_of_masks();
  d.head.norm = "lm_head.layer_norm";
  d.head.output = "lm_head";
  d.head.transform->dense = "lm_head.dense";
  return d;
}

}  // namespace hawser::testing::blocks
