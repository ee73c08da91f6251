// Blocks of other kinds than Llama's, described as data alone: loss and gradients of GPT-NeoX, GPT-2, Gemma 2 and 3,
// Qwen3, Mixtral, Falcon, BLOOM and a Llama with parallel blocks equal those of transformers in float64
// (tests/golden/blocks, made by tools/golden/make_blocks.py).
#include <gtest/gtest.h>

#include "block_models.h"

namespace hawser {
namespace blocks_test {

using namespace testing::blocks;

TEST(Blocks, NeoXIsDataAlone) {
  expect_equal("neox", neox);
  expect_equal("neox", interleaved_neox);
}

TEST(Blocks, Gpt2IsDataAlone) {
  expect_equal("gpt2", gpt2);
}

TEST(Blocks, MixtralIsDataAlone) {
  expect_equal("mixtral", mixtral);
  const std::map<std::string, std::function<void(nn::MoeConfig&)>> changes = {
      {"coefficient", [](auto& moe) { moe.auxiliary_loss = 0.1; }},
      {"z-loss", [](auto& moe) { moe.router_z_loss = 0.01; }},
      {"weights not normalised", [](auto& moe) { moe.normalise_top_k = false; }},
      {"one expert", [](auto& moe) { moe.top_k = 1; }},
  };
  for (const auto& [text, change] : changes) {
    models::ModelDescription description = mixtral();
    for (models::BlockDescription& block : description.blocks) change(*block.moe);
    const Difference off = difference("mixtral", description, Checkpointing::none, false);
    EXPECT_GT(std::max(off.loss, off.router_loss), 1e-4) << text;
  }
}

TEST(Blocks, Gemma3IsDataAlone) {
  expect_equal("gemma3", gemma3);
}

TEST(Blocks, ChangedScoresAreDataAlone) {
  expect_equal("gemma2", gemma2);
  expect_equal("bloom", bloom);
}

TEST(Blocks, Qwen3IsDataAlone) {
  expect_equal("qwen3", qwen3);
}

TEST(Blocks, OneNormOfAParallelBlockIsDataAlone) {
  expect_equal("falcon", falcon);
  expect_equal("parallel_llama", parallel_llama);
}

TEST(Blocks, GenerationComputesTheSameLoss) {
  const std::map<std::string, Describe> descriptions = {
      {"gemma3", gemma3}, {"qwen3", qwen3}, {"falcon", falcon}, {"gemma2", gemma2}, {"bloom", bloom}};
  for (const auto& [name, describe] : descriptions) expect_equal_generation(name, describe);
}

// What a description says matters: each of these is another model.
TEST(Blocks, AWrongDescriptionIsFound) {
  expect_another("neox", neox,
                 {{"qkv rows in the model's order", [](auto& d) { d.blocks[0].attention.qkv_rows.clear(); }},
                  {"serial residual", [](auto& d) { d.blocks[1].residual = models::Residual::serial; }},
                  {"other GELU", [](auto& d) { d.blocks[0].mlp.activation = nn::Activation::gelu_tanh; }},
                  {"all of a head rotated", [](auto& d) { d.ropes[0].head_dim = kHeadDim; }},
                  {"one of two RoPE bases",
                   [](auto& d) {
                     d.ropes.push_back({.theta = 50.0, .head_dim = kHeadDim / 2});
                     d.blocks[1].attention.rope = 1;
                   }},
                  {"epsilon", [](auto& d) { d.blocks[0].mlp.norm_config.epsilon = 1e-2; }},
                  {"scale", [](auto& d) { d.blocks[0].attention.scale = 0.3; }}});
  expect_another("neox", interleaved_neox, {{"halves rotated", [](auto& d) { d.ropes[0].interleaved = false; }}});
  expect_another("falcon", falcon,
                 {{"the MLP after attention",
                   [](auto& d) {
                     d.blocks[1].residual = models::Residual::serial;
                     d.blocks[1].mlp.shared_norm = true;
                   }},
                  {"epsilon", [](auto& d) {
                     d.blocks[0].attention.norm_config.epsilon = d.blocks[0].mlp.norm_config.epsilon = 1e-2;
                   }}});
  expect_another("gemma2", gemma2,
                 {{"no soft cap", [](auto& d) { d.blocks[1].attention.softcap.reset(); }},
                  {"another soft cap", [](auto& d) { d.blocks[0].attention.softcap = 1.6; }},
                  {"another soft cap of logits", [](auto& d) { d.head.softcap = 2.1; }}});
  expect_another("bloom", bloom, {{"no ALiBi", [](auto& d) { d.blocks[1].attention.alibi = false; }}});
  expect_another(
      "gemma3", gemma3,
      {{"window", [](auto& d) { d.blocks[0].attention.window = 6; }},
       {"RoPE", [](auto& d) { d.blocks[0].attention.rope = 1; }},
       {"factor of the embeddings", [](auto& d) { d.embedding.scale = 1; }},
       {"exact GELU", [](auto& d) { d.blocks[1].mlp.activation = nn::Activation::geglu; }},
       {"no unit offset of q and k", [](auto& d) { d.blocks[1].attention.qk_norm->unit_offset = false; }},
       {"no unit offset of an MLP's norms", [](auto& d) { d.blocks[1].mlp.norm_config.unit_offset = false; }}});
}

}  // namespace blocks_test
}  // namespace hawser
