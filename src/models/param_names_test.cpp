// Parameters that optimizer.groups names.
#include "models/param_names.h"

#include "models/param_groups.h"
#include "models/testing/configs.h"

namespace hawser::models {
namespace param_names_test {

const Problem kGroups{.file = "r.yaml", .at = "optimizer.groups"};
constexpr const char* kTied = R"({"tie_word_embeddings": true})";
constexpr const char* kUntied = R"({"tie_word_embeddings": false})";

TEST(ParamNames, SelectByNameModuleOrPattern) {
  const ParamNames names({"embed_tokens", "layers.1", ".*[.]layers[.][02]", "bias", ".*norm[.]weight", "*"});
  EXPECT_EQ(names.find("model.embed_tokens.weight"), 0);
  EXPECT_EQ(names.find("model.layers.1.self_attn.q_proj.weight"), 1);
  EXPECT_EQ(names.find("model.layers.11.self_attn.q_proj.weight"), std::nullopt);  // names are whole
  EXPECT_EQ(names.find("model.layers.2.mlp.up_proj.weight"), 2);
  EXPECT_EQ(names.find("model.layers.20.mlp.up_proj.weight"), std::nullopt);
  EXPECT_EQ(names.find("model.layers.5.self_attn.q_proj.bias"), 3);
  EXPECT_EQ(names.find("model.norm.weight"), 4);
  EXPECT_EQ(names.find("model.layers.0.input_layernorm.weight"), 2);  // the first wins
  EXPECT_TRUE(names.selects(4, "model.layers.0.input_layernorm.weight"));
  EXPECT_EQ(names.find("lm_head.weight"), std::nullopt);
  EXPECT_EQ(names.find("weight"), std::nullopt);
}

std::string group_problems(const std::vector<ParamGroup>& groups, const char* patch = kUntied) {
  const Model model(described_as("llama", patch));
  Problems problems;
  check_groups(model, groups, kGroups, problems);
  return problems.lines();
}

TEST(ParamGroups, TheFirstThatMatchesHasTheParameter) {
  const std::vector<ParamGroup> groups = {{{"embed_tokens", "lm_head"}}, {{"layers.0"}}, {{".*layernorm"}}};
  EXPECT_EQ(group_problems(groups), "");
  EXPECT_EQ(group_problems(groups, kTied), "");
  const Model model(described_as("llama", kUntied), with_groups(nn::common_domain, groups));
  for (const nn::Flat& flat : model.flats()) {
    for (const nn::Param& param : flat.params()) {
      const std::string& name = param.segments.front().name;
      const int expected = name == "model.embed_tokens.weight" || name == "lm_head.weight" ? 1
                           : name.find("layers.0.") != std::string::npos                   ? 2
                           : name.find("layernorm.weight") != std::string::npos            ? 3
                                                                                           : 0;
      EXPECT_EQ(flat.spec().group, expected) << name;
    }
  }
}

TEST(ParamGroups, EachMistakeIsOneLine) {
  const std::string place = " at optimizer.groups";
  EXPECT_EQ(
      group_problems({{{"layers.0"}}, {{".*layers[.]0[.].*"}}}),
      "r.yaml: a group without a parameter that trains and is in no earlier group (got .*layers[.]0[.].*)" + place);
  EXPECT_EQ(
      group_problems({{{"k_proj", "v_proj"}}}),
      "r.yaml: these are one parameter, which is in one group as a whole (expected all of q_proj, k_proj, v_proj, "
      "got k_proj, v_proj)" +
          place);
  EXPECT_EQ(group_problems({{{"lm_head"}}}, kTied),
            "r.yaml: the embedding and the head are one tensor (expected both of model.embed_tokens and lm_head, or "
            "neither, got lm_head)" +
                place);
  EXPECT_EQ(group_problems({{{".*norm"}, true}}), "r.yaml: weight decay of a group without a matrix (got .*norm)" +
                                                      place + "; try the group without weight_decay");
  EXPECT_EQ(group_problems({{{".*norm"}}, {{"down_proj"}, true}}), "");
  EXPECT_NE(group_problems({{{"embedd_tokens"}}}).find("the model has no such parameter"), std::string::npos);
}

}  // namespace param_names_test
}  // namespace hawser::models
