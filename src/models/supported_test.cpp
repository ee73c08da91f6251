// Each feature that a description can say and no layer computes is rejected, by its name and the first block.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <map>

#include "models/supported.h"
#include "models/testing/model_files.h"

namespace hawser::models {
namespace supported_test {

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
              d.blocks[1].attention.softcap = 50;
              d.blocks[1].attention.alibi = true;
              d.blocks[1].attention.scale = 1e30;
              d.blocks[1].attention.dropout = 0.1;
              d.blocks[0].attention.dropout = 0.999;
              d.blocks[1].mlp.activation = nn::Activation::gelu;
              d.blocks[1].residual = Residual::parallel;
              d.embedding.scale = 45;
              d.embedding.positions = "position_embeddings", d.embedding.max_position = 4098;
              d.embedding.position_offset = 2;
              d.embedding.types = "token_type_embeddings", d.embedding.type_count = 1;
              d.embedding.norm_config = nn::NormConfig(), d.embedding.norm = "embeddings_norm";
              d.head.transform = nn::HeadTransformConfig{.dense = "transform", .norm_config = nn::NormConfig()};
              d.head.transform->norm = "final_norm";
              d.ropes[0].interleaved = true;
              d.blocks[0].attention.qk_norm = {.unit_offset = true};
              d.blocks[0].attention.norm_place = d.blocks[0].mlp.norm_place = nn::NormPlace::sandwich;
              d.blocks[0].mlp.activation = nn::Activation::geglu_tanh;
              d.head.softcap = 30;
              d.head.bias = true;
            }),
            "");
  EXPECT_EQ(rejection([](ModelDescription& d) {
              d.blocks[1].attention.norm_place = d.blocks[1].mlp.norm_place = nn::NormPlace::post;
            }),
            "");
}

TEST(Supported, HeadsOfMaskedTokensAndClasses) {
  for (const nn::HeadKind kind : {nn::HeadKind::masked_language_model, nn::HeadKind::sequence_classification,
                                  nn::HeadKind::token_classification}) {
    EXPECT_EQ(rejection([kind](ModelDescription& d) {
                d.head.kind = kind;
                d.head.tied = false;
                d.head.classes = 3;
                d.head.norm = "";
                d.head.transform = nn::HeadTransformConfig{.dense = "pooler", .activation = nn::Activation::tanh};
                const Model model(d);
                const bool classes = d.head.classifies();
                EXPECT_EQ(model.head_columns(), classes ? 3 : d.head.vocabulary);
                EXPECT_EQ(model.vocabulary(), d.embedding.vocabulary);
              }),
              "");
  }
}

// The norm is one parameter of the model, which both layers of the block use.
TEST(Supported, AParallelResidualWithOneNorm) {
  for (const nn::NormConfig& norm : {nn::NormConfig(), nn::NormConfig{.kind = nn::NormKind::layer, .bias = true},
                                     nn::NormConfig{.kind = nn::NormKind::layer}}) {
    for (const bool experts : {false, true}) {
      Problems problems;
      ModelDescription two = read_description(golden(golden_names().front()), problems);
      BlockDescription& block = two.blocks[1];
      if (experts) {
        block.moe = nn::MoeConfig{.width = block.mlp.width,
                                  .experts = 3,
                                  .top_k = 2,
                                  .inner = 8,
                                  .norm_config = norm,
                                  .norm = block.mlp.norm,
                                  .router = "router",
                                  .gate = "experts.{}.w1",
                                  .up = "experts.{}.w3",
                                  .down = "experts.{}.w2"};
      }
      block.residual = Residual::parallel;
      block.attention.norm_config = block.mlp.norm_config = norm;
      const auto one_norm = [&](const std::string& name, const nn::NormConfig& config) {
        ModelDescription d = two;
        d.blocks[1].residual = Residual::parallel_one_norm;
        (experts ? d.blocks[1].moe->norm : d.blocks[1].mlp.norm) = name;
        (experts ? d.blocks[1].moe->norm_config : d.blocks[1].mlp.norm_config) = config;
        check_supported(d, "config.json", problems);
        return d;
      };
      const std::string& name = block.attention.norm;
      const Model plain(two), model(one_norm(name, norm));
      EXPECT_EQ(problems.lines(), "");
      EXPECT_EQ(model.parameters(), plain.parameters() - block.mlp.width * (norm.bias ? 2 : 1));
      EXPECT_EQ(model.trainable_parameters(), model.parameters());
      EXPECT_EQ(model.layer_params(3)[0].index, model.layer_params(2)[0].index);
      EXPECT_EQ(model.layer_params(3)[0].flat, model.layer_params(2)[0].flat);
      nn::NormConfig other = norm;
      other.epsilon = 1e-3;
      EXPECT_THROW(Model(one_norm(name, other)), InternalError) << "two kinds";
      EXPECT_THROW(Model(one_norm(block.mlp.norm, norm)), InternalError) << "the name of no norm";
    }
  }
}

TEST(Supported, EverythingElseIsRejectedByName) {
  using Change = std::function<void(ModelDescription&)>;
  const std::map<std::string, Change> changes = {
      {"a layer norm whose factor is 1 + weight) at block 1",
       [](auto& d) { d.blocks[1].mlp.norm_config = {.kind = nn::NormKind::layer, .unit_offset = true}; }},
      {"a norm of the sum of parallel layers) at block 1",
       [](auto& d) {
         d.blocks[1].mlp.norm_place = nn::NormPlace::post;
         d.blocks[1].residual = Residual::parallel;
       }},
      {"layer norms of queries and keys) at block 1",
       [](auto& d) { d.blocks[1].attention.qk_norm = {.kind = nn::NormKind::layer}; }},
      {"an RMS norm with a bias) at block 1", [](auto& d) { d.blocks[1].mlp.norm_config.bias = true; }},
      {"an RMS norm with a bias) at block 0", [](auto& d) { d.blocks[0].attention.qk_norm = {.bias = true}; }},
      {"dropout of attention outside [0, 1)) at block 1", [](auto& d) { d.blocks[1].attention.dropout = 1; }},
      {"attention scores with a scale that is negative or out of range) at block 1",
       [](auto& d) { d.blocks[1].attention.scale = -1; }},
      {"soft-capping of attention scores with a cap that is negative or out of range) at block 1",
       [](auto& d) { d.blocks[1].attention.softcap = -50; }},
      {"an RMS norm with a bias) at embedding",
       [](auto& d) { d.embedding.norm_config = nn::NormConfig{.bias = true}; }},
      {"the activation of the head) at head",
       [](auto& d) {
         d.head.transform = nn::HeadTransformConfig{.dense = "dense", .activation = nn::Activation::swiglu};
       }},
      {"an RMS norm with a bias) at head",
       [](auto& d) {
         d.head.transform = nn::HeadTransformConfig{.dense = "dense", .norm_config = nn::NormConfig{.bias = true}};
       }},
      {"a classification of fewer than two classes) at head",
       [](auto& d) {
         d.head.kind = nn::HeadKind::sequence_classification;
         d.head.tied = false;
         d.head.classes = 1;
       }},
      {"a classification with the embedding's table) at head",
       [](auto& d) {
         d.head.kind = nn::HeadKind::token_classification;
         d.head.tied = true;
         d.head.classes = 3;
       }},
      {"soft-capping of logits with a cap that is negative or out of range) at head",
       [](auto& d) { d.head.softcap = -30; }},
  };
  for (const auto& [expected, change] : changes) {
    EXPECT_EQ(rejection(change), cat("config.json: not supported yet (got ", expected));
  }
  for (const double factor :
       {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN(), 1e39, 1e-39}) {
    EXPECT_NE(rejection([factor](auto& d) { d.blocks[0].attention.softcap = factor; }), "") << factor;
    EXPECT_NE(rejection([factor](auto& d) { d.blocks[0].attention.scale = factor; }), "") << factor;
    EXPECT_NE(rejection([factor](auto& d) { d.head.softcap = factor; }), "") << factor;
    const auto biased = [factor](auto& d) { d.blocks[0].attention.alibi_scale = factor; };
    EXPECT_EQ(rejection(biased), "") << "of no biases";
    EXPECT_NE(rejection([&](auto& d) { biased(d), d.blocks[0].attention.alibi = true; }), "") << factor;
  }
  for (const double dropout : {-0.1, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_NE(rejection([dropout](auto& d) { d.blocks[0].attention.dropout = dropout; }), "") << dropout;
  }
}

// Many blocks with one feature are one line.
TEST(Supported, AFeatureIsOneLine) {
  EXPECT_EQ(
      rejection([](ModelDescription& d) {
        for (BlockDescription& block : d.blocks) block.attention.scale = -1;
      }),
      "config.json: not supported yet (got attention scores with a scale that is negative or out of range) at block "
      "0");
}

}  // namespace supported_test
}  // namespace hawser::models
