// GPT-J, BERT and RoBERTa as data alone: loss and gradients equal those of transformers in float64. The loss of the
// encoders is that of the next token, as of all golden files, though they see it.
#include "encoders.h"

namespace hawser {
namespace bert_test {

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

TEST(Blocks, GptJIsDataAlone) {
  expect_equal("gptj", gptj);
  expect_equal_generation("gptj", gptj);
}

TEST(Blocks, BertIsDataAlone) {
  expect_equal("bert", masked_bert);
}

TEST(Blocks, RobertaIsDataAlone) {
  expect_equal("roberta", masked_roberta);
}

TEST(Blocks, AWrongEncoderIsFound) {
  expect_another("gptj", gptj, {{"halves rotated", [](auto& d) { d.ropes[0].interleaved = false; }}});
  expect_another(
      "bert", masked_bert,
      {{"no later tokens", [](auto& d) { d.blocks[0].attention.causal = true; }},
       {"another activation of the head", [](auto& d) { d.head.transform->activation = nn::Activation::gelu_tanh; }},
       {"epsilon of the embedding", [](auto& d) { d.embedding.norm_config->epsilon = 1e-2; }},
       {"epsilon of a sum", [](auto& d) { d.blocks[1].mlp.norm_config.epsilon = 1e-2; }}});
  expect_another("roberta", masked_roberta,
                 {{"another first position", [](auto& d) { d.embedding.position_offset = 1; }}});
}

}  // namespace bert_test
}  // namespace hawser
