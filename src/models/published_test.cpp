// The published models of each family: their config.json is read, and they have the published number of parameters.
#include <cmath>
#include <map>

#include "models/supported.h"
#include "models/testing/model_files.h"
#include "models/testing/published.h"

namespace hawser::models {
namespace published_test {

using testing::kPublished;
using testing::Published;

std::int64_t norm_parameters(const nn::NormConfig& norm, std::int64_t width) {
  return (norm.bias ? 2 : 1) * width;
}

// The number of parameters, from the description alone.
std::int64_t parameters(const ModelDescription& d) {
  const std::int64_t width = d.embedding.width;
  std::int64_t count =
      (d.head.tied ? 1 : 2) * d.embedding.vocabulary * width + norm_parameters(d.head.norm_config, width);
  for (const BlockDescription& block : d.blocks) {
    const nn::AttentionConfig& a = block.attention;
    count += (a.qkv_size() + a.q_size()) * width + norm_parameters(a.norm_config, width);
    count += (a.qkv_bias ? a.qkv_size() : 0) + (a.output_bias ? width : 0);
    count += a.qk_norm ? 2 * norm_parameters(*a.qk_norm, a.head_dim) : 0;
    count += a.post_norm.empty() ? 0 : norm_parameters(a.norm_config, width);
    if (block.moe) {
      count +=
          block.moe->experts * (width + 3 * block.moe->inner * width) + norm_parameters(block.moe->norm_config, width);
      continue;
    }
    const nn::MlpConfig& m = block.mlp;
    count += (m.up_size() + m.inner) * width + norm_parameters(m.norm_config, width);
    count += m.bias ? m.up_size() + width : 0;
    count += m.post_norm.empty() ? 0 : norm_parameters(m.norm_config, width);
  }
  return count;
}

TEST(Published, HaveTheirNumberOfParameters) {
  for (const Published& model : kPublished) {
    SCOPED_TRACE(model.name);
    Problems problems;
    const ModelDescription d = describe_unchecked(model.config, "config.json", problems);
    EXPECT_EQ(problems.lines(), "");
    ASSERT_FALSE(d.blocks.empty());
    EXPECT_EQ(parameters(d), model.parameters);
    Problems unsupported;
    check_supported(d, "", unsupported);
    if (unsupported.empty()) {
      EXPECT_EQ(Model(d).parameters(), model.parameters);
    }
    // The config that is written describes the same model.
    const ModelDescription again = describe_unchecked(config_json(d, DType::bf16), "config.json", problems);
    EXPECT_EQ(problems.lines(), "");
    EXPECT_EQ(description_changes(d, again), "");
    EXPECT_EQ(again.max_position, d.max_position);
  }
}

TEST(Published, WhatTheirConfigsSay) {
  std::map<std::string, ModelDescription> of;
  for (const Published& model : kPublished) {
    Problems problems;
    of[model.name] = describe_unchecked(model.config, "config.json", problems);
  }
  EXPECT_EQ(of["Mistral-7B-v0.3"].blocks[0].attention.window, 0);
  EXPECT_EQ(of["Qwen2.5-7B"].blocks[27].attention.window, 0);
  EXPECT_TRUE(of["Qwen2.5-7B"].blocks[0].attention.qkv_bias);
  EXPECT_EQ(of["Mixtral-8x7B-v0.1"].blocks[31].moe->auxiliary_loss, 0.02);
  EXPECT_FALSE(of["Mixtral-8x7B-v0.1"].blocks[31].moe->reported);
  EXPECT_TRUE(of["Qwen3-30B-A3B"].blocks[47].moe->normalise_top_k);
  for (const char* name : {"gemma-3-1b", "gemma-3-270m"}) {
    const ModelDescription& gemma = of[name];
    EXPECT_EQ(gemma.embedding.scale, std::sqrt(static_cast<double>(gemma.embedding.width)));
    EXPECT_EQ(gemma.blocks[0].attention.window, 512);
    EXPECT_EQ(gemma.blocks[5].attention.window, 0);
    EXPECT_EQ(gemma.ropes[static_cast<std::size_t>(gemma.blocks[0].attention.rope.value())].theta, 1e4);
    EXPECT_EQ(gemma.ropes[static_cast<std::size_t>(gemma.blocks[5].attention.rope.value())].theta, 1e6);
  }
  EXPECT_EQ(of["pythia-6.9b"].ropes[0].head_dim, 32);
  EXPECT_EQ(of["pythia-6.9b"].head.output, "embed_out");
}

}  // namespace published_test
}  // namespace hawser::models
