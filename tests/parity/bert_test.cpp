// GPT-J, BERT and RoBERTa as data alone: loss and gradients equal those of transformers in float64. The loss of the
// encoders is that of the next token, as of all golden files, though they see it.
#include "blocks.h"

namespace hawser {
namespace {

using namespace testing::blocks;

// Interleaved rotation of a part of each head, one norm for attention and MLP, biases of the MLP and of the head alone.
models::ModelDescription gptj() {
  models::ModelDescription d;
  d.family = "gptj";
  d.embedding = {.vocabulary = kVocabulary, .width = kWidth, .table = "transformer.wte"};
  for (int b = 0; b < 2; ++b) {
    const std::string p = cat("transformer.h.", b, "."), a = p + "attn.";
    d.blocks.push_back({.attention = {.width = kWidth,
                                      .heads = kHeads,
                                      .kv_heads = kHeads,
                                      .head_dim = kHeadDim,
                                      .norm_config = kLayerNorm,
                                      .norm = p + "ln_1",
                                      .q = a + "q_proj",
                                      .k = a + "k_proj",
                                      .v = a + "v_proj",
                                      .output = a + "out_proj",
                                      .fused = a + "qkv_proj"},
                        .mlp = {.width = kWidth,
                                .inner = kInner,
                                .bias = true,
                                .norm_config = kLayerNorm,
                                .activation = nn::Activation::gelu_tanh,
                                .norm = p + "ln_1",
                                .up = p + "mlp.fc_in",
                                .down = p + "mlp.fc_out",
                                .fused = p + "mlp.fc_in"},
                        .residual = models::Residual::parallel_one_norm});
  }
  d.head = {.vocabulary = kVocabulary,
            .width = kWidth,
            .norm_config = kLayerNorm,
            .norm = "transformer.ln_f",
            .output = "lm_head",
            .bias = true};
  d.ropes = {{.theta = 10000.0, .head_dim = kHeadDim / 2, .interleaved = true}};
  return d;
}

// Attention to later tokens, norms of sums, learned positions, token types, a norm of the embeddings, and a head with a
// transform and a bias, whose weight is the embedding's.
models::ModelDescription bert() {
  models::ModelDescription d;
  d.family = "bert";
  d.embedding = {.vocabulary = kVocabulary,
                 .width = kWidth,
                 .table = "bert.embeddings.word_embeddings",
                 .positions = "bert.embeddings.position_embeddings",
                 .max_position = 64,
                 .types = "bert.embeddings.token_type_embeddings",
                 .type_count = 2,
                 .norm_config = kLayerNorm,
                 .norm = "bert.embeddings.LayerNorm"};
  for (int b = 0; b < 2; ++b) {
    const std::string p = cat("bert.encoder.layer.", b, "."), a = p + "attention.";
    d.blocks.push_back({.attention = {.width = kWidth,
                                      .heads = kHeads,
                                      .kv_heads = kHeads,
                                      .head_dim = kHeadDim,
                                      .qkv_bias = true,
                                      .output_bias = true,
                                      .norm_config = kLayerNorm,
                                      .norm_place = nn::NormPlace::post,
                                      .rope = -1,
                                      .causal = false,
                                      .norm = a + "output.LayerNorm",
                                      .q = a + "self.query",
                                      .k = a + "self.key",
                                      .v = a + "self.value",
                                      .output = a + "output.dense",
                                      .fused = a + "self.qkv"},
                        .mlp = {.width = kWidth,
                                .inner = kInner,
                                .bias = true,
                                .norm_config = kLayerNorm,
                                .norm_place = nn::NormPlace::post,
                                .activation = nn::Activation::gelu,
                                .norm = p + "output.LayerNorm",
                                .up = p + "intermediate.dense",
                                .down = p + "output.dense",
                                .fused = p + "intermediate.dense"}});
  }
  d.head = {.vocabulary = kVocabulary,
            .width = kWidth,
            .tied = true,
            .norm_config = kLayerNorm,
            .norm = "cls.predictions.transform.LayerNorm",
            .output = "cls.predictions",
            .transform = nn::HeadTransformConfig{.dense = "cls.predictions.transform.dense"},
            .bias = true};
  d.tables = {nn::kTokenTypes};
  return d;
}

// One type for all tokens, and positions from row 2 of their table on.
models::ModelDescription roberta() {
  models::ModelDescription d = bert();
  d.family = "roberta";
  d.tables.clear();
  d.embedding.max_position = 66;
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
  d.head.norm = "lm_head.layer_norm";
  d.head.output = "lm_head";
  d.head.transform->dense = "lm_head.dense";
  return d;
}

TEST(Blocks, GptJIsDataAlone) {
  expect_equal("gptj", gptj);
  expect_equal_generation("gptj", gptj);
}

TEST(Blocks, BertIsDataAlone) {
  expect_equal("bert", bert);
}

TEST(Blocks, RobertaIsDataAlone) {
  expect_equal("roberta", roberta);
}

TEST(Blocks, AWrongEncoderIsFound) {
  expect_another("gptj", gptj, {{"halves rotated", [](auto& d) { d.ropes[0].interleaved = false; }}});
  expect_another(
      "bert", bert,
      {{"no later tokens", [](auto& d) { d.blocks[0].attention.causal = true; }},
       {"another activation of the head", [](auto& d) { d.head.transform->activation = nn::Activation::gelu_tanh; }},
       {"epsilon of the embedding", [](auto& d) { d.embedding.norm_config->epsilon = 1e-2; }},
       {"epsilon of a sum", [](auto& d) { d.blocks[1].mlp.norm_config.epsilon = 1e-2; }}});
  expect_another("roberta", roberta, {{"another first position", [](auto& d) { d.embedding.position_offset = 1; }}});
}

}  // namespace
}  // namespace hawser
