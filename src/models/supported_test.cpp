// Each feature that a description can say and no layer computes is rejected, by its name and the first block.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "models/supported.h"
#include "models/testing/model_files.h"

namespace hawser::models {
namespace {

std::string rejection(const std::function<void(ModelDescription&)>& change) {
  Problems problems;
  ModelDescription description = read_description(golden(golden_names().front()), problems);
  EXPECT_EQ(problems.lines(), "");
  EXPECT_GE(description.blocks.size(), 2u);
  change(description);
  check_supported(description, "config.json", problems);
  if (!problems.empty()) {
    EXPECT_THROW(Model(std::move(description)), InternalError);
  }
  return problems.lines();
}

TEST(Supported, WhatLayersCompute) {
  EXPECT_EQ(rejection([](ModelDescription& d) {
              d.blocks[1].attention.norm_config = {.kind = nn::NormKind::layer, .bias = true};
              d.blocks[1].attention.window = 8;
              d.blocks[1].mlp.activation = nn::Activation::gelu;
              d.blocks[1].residual = Residual::parallel;
              d.embedding.scale = 45;
              d.blocks[0].attention.qk_norm = {.unit_offset = true};
              d.blocks[0].attention.norm_place = d.blocks[0].mlp.norm_place = nn::NormPlace::sandwich;
              d.blocks[0].mlp.activation = nn::Activation::geglu_tanh;
            }),
            "");
}

TEST(Supported, EverythingElseIsRejectedByName) {
  using Change = std::function<void(ModelDescription&)>;
  const std::map<std::string, Change> changes = {
      {"a layer norm whose factor is 1 + weight) at block 1",
       [](auto& d) { d.blocks[1].mlp.norm_config = {.kind = nn::NormKind::layer, .unit_offset = true}; }},
      {"a norm after the residual sum) at block 1",
       [](auto& d) { d.blocks[1].attention.norm_place = nn::NormPlace::post; }},
      {"layer norms of queries and keys) at block 1",
       [](auto& d) { d.blocks[1].attention.qk_norm = {.kind = nn::NormKind::layer}; }},
      {"an RMS norm with a bias) at block 1", [](auto& d) { d.blocks[1].mlp.norm_config.bias = true; }},
      {"an RMS norm with a bias) at block 0", [](auto& d) { d.blocks[0].attention.qk_norm = {.bias = true}; }},
      {"attention scores with a negative scale) at block 1", [](auto& d) { d.blocks[1].attention.scale = -1; }},
      {"soft-capping of attention scores) at block 1", [](auto& d) { d.blocks[1].attention.softcap = 50; }},
      {"ALiBi) at block 1", [](auto& d) { d.blocks[1].attention.alibi = true; }},
      {"a parallel residual with one norm) at block 1",
       [](auto& d) { d.blocks[1].residual = Residual::parallel_one_norm; }},
      {"the activation of the experts) at block 1",
       [](auto& d) { d.blocks[1].moe = nn::MoeConfig{.experts = 8, .top_k = 2, .activation = nn::Activation::relu}; }},
      {"the activation of the MLP) at block 1",
       [](auto& d) { d.blocks[1].mlp.activation = nn::Activation::relu_squared; }},
      {"embeddings of token types) at embedding", [](auto& d) { d.embedding.types = "token_type_embeddings"; }},
      {"a norm of the embeddings) at embedding", [](auto& d) { d.embedding.norm_config = nn::NormConfig(); }},
      {"interleaved rotation) at RoPE", [](auto& d) { d.ropes[0].interleaved = true; }},
      {"a masked language model's head) at head", [](auto& d) { d.head.kind = nn::HeadKind::masked_language_model; }},
      {"classification of sequences) at head", [](auto& d) { d.head.kind = nn::HeadKind::sequence_classification; }},
      {"classification of tokens) at head", [](auto& d) { d.head.kind = nn::HeadKind::token_classification; }},
      {"prediction of spans) at head", [](auto& d) { d.head.kind = nn::HeadKind::span; }},
      {"soft-capping of logits) at head", [](auto& d) { d.head.softcap = 30; }},
      {"a bias of the head) at head", [](auto& d) { d.head.bias = true; }},
  };
  for (const auto& [expected, change] : changes) {
    EXPECT_EQ(rejection(change), cat("config.json: not supported yet (got ", expected));
  }
}

// Many blocks with one feature are one line.
TEST(Supported, AFeatureIsOneLine) {
  EXPECT_EQ(rejection([](ModelDescription& d) {
              for (BlockDescription& block : d.blocks) block.attention.alibi = true;
            }),
            "config.json: not supported yet (got ALiBi) at block 0");
}

}  // namespace
}  // namespace hawser::models
