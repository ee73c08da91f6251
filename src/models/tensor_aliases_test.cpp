#include "models/tensor_aliases.h"

#include "models/testing/configs.h"
#include "models/weights.h"

namespace hawser::models {
namespace tensor_aliases_test {

using Names = std::vector<std::string>;

TensorAliases aliases_of(const ModelDescription& description) {
  std::set<std::string> known;
  for (const HfTensor& tensor : hf_tensors(Model(description))) known.insert(tensor.name);
  return {description, known};
}

TEST(TensorAliases, NamesWithoutWhatWrapsAModule) {
  for (const char* name :
       {"norm.weight", "model.norm.weight", "module.model.norm.weight", "model._orig_mod.norm.weight",
        "base_model.model.model.norm.weight", "_fsdp_wrapped_module.model.norm.weight"}) {
    EXPECT_EQ(TensorAliases::bare(name), "norm.weight") << name;
  }
  EXPECT_EQ(TensorAliases::bare("layers.0.model.weight"), "layers.0.model.weight");
  EXPECT_EQ(TensorAliases::bare("module"), "module");
  EXPECT_EQ(TensorAliases::bare(""), "");
}

TEST(TensorAliases, ExpertsInTransformersOwnForm) {
  for (const std::string family : {"qwen3_moe", "mixtral"}) {
    const auto [description, problems] = read_as(family, R"({"num_hidden_layers": 1})");
    EXPECT_EQ(problems, "");
    const TensorAliases aliases = aliases_of(description);
    const nn::MoeConfig& moe = *description.blocks.front().moe;
    const Names gate_up = aliases.tensors_of("model.layers.0.mlp.experts.gate_up_proj");
    ASSERT_EQ(gate_up.size(), static_cast<std::size_t>(2 * moe.experts)) << family;
    const bool mixtral = family == "mixtral";
    const std::string base = mixtral ? "model.layers.0.block_sparse_moe.experts." : "model.layers.0.mlp.experts.";
    EXPECT_EQ(gate_up[0], base + (mixtral ? "0.w1.weight" : "0.gate_proj.weight"));
    EXPECT_EQ(gate_up[1], base + (mixtral ? "0.w3.weight" : "0.up_proj.weight"));
    EXPECT_EQ(gate_up[2], base + (mixtral ? "1.w1.weight" : "1.gate_proj.weight"));
    const Names down = aliases.tensors_of("layers.0.mlp.experts.down_proj");
    ASSERT_EQ(down.size(), static_cast<std::size_t>(moe.experts)) << family;
    EXPECT_EQ(down[1], base + (mixtral ? "1.w2.weight" : "1.down_proj.weight"));
  }
}

TEST(TensorAliases, TheHeadOfGptNeoX) {
  const auto [description, problems] = read_as("gpt_neox");
  EXPECT_EQ(problems, "");
  const TensorAliases aliases = aliases_of(description);
  EXPECT_EQ(aliases.tensors_of("lm_head.weight"), Names({"embed_out.weight"}));
  EXPECT_EQ(aliases.tensors_of("layers.0.attention.dense.bias"), Names({"gpt_neox.layers.0.attention.dense.bias"}));
  EXPECT_EQ(aliases.tensors_of("layers.0.attention.rotary.bias"), Names());
}

}  // namespace tensor_aliases_test
}  // namespace hawser::models
