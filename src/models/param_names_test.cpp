// Parameters that train.freeze and optimizer.groups name.
#include "models/param_names.h"

#include <set>

#include "models/frozen_params.h"
#include "models/param_groups.h"
#include "models/testing/configs.h"

namespace hawser::models {
namespace param_names_test {

const Problem kFreeze{.file = "r.yaml", .at = "train.freeze"};
const Problem kGroups{.file = "r.yaml", .at = "optimizer.groups"};
constexpr const char* kTied = R"({"tie_word_embeddings": true})";
constexpr const char* kUntied = R"({"tie_word_embeddings": false})";

std::string frozen_problems(const std::vector<std::string>& entries, const std::string& family = "llama",
                            const std::string& patch = kUntied) {
  Problems problems;
  check_frozen(described_as(family, patch), entries, kFreeze, problems);
  return problems.lines();
}

// Tensors that do not train.
std::set<std::string> frozen(const std::vector<std::string>& entries, const std::string& family = "llama",
                             const std::string& patch = kUntied) {
  EXPECT_EQ(frozen_problems(entries, family, patch), "");
  const Model model(described_as(family, patch), freeze(nn::common_domain, ParamNames(entries)));
  std::set<std::string> out;
  for (const NamedParam& named : named_params(model)) {
    if (!named.trainable) out.insert(named.tensor);
  }
  return out;
}

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

TEST(Frozen, AreNotTrained) {
  EXPECT_EQ(frozen({"embed_tokens"}), std::set<std::string>{"model.embed_tokens.weight"});
  EXPECT_EQ(frozen({"layers.0"}).size(), 9u);
  EXPECT_EQ(frozen({".*layers[.][01]", "model.norm"}).size(), 19u);
  EXPECT_EQ(frozen({".*[qkv]_proj"}).size(), 12u);
  EXPECT_EQ(frozen({"embed_tokens", "lm_head"}, "llama", kTied),
            (std::set<std::string>{"model.embed_tokens.weight", "lm_head.weight"}));
  const std::set<std::string> experts = frozen({"experts"}, "mixtral", "{}");
  EXPECT_GT(experts.size(), 20u);
  for (const std::string& name : experts) EXPECT_NE(name.find(".experts."), std::string::npos) << name;
  const Model all(described_as("llama", kUntied)),
      part(described_as("llama", kUntied), freeze(nn::common_domain, ParamNames({"embed_tokens", ".*layers[.][0-2]"})));
  EXPECT_EQ(all.first_trained_layer(), 0);
  EXPECT_EQ(part.first_trained_layer(), 6);
  const nn::RowCounts rows{16, 16};
  const auto pairs = [](const AttentionMask&) { return 100.0; };
  const double forward_of_lower = [&] {
    double flops = 0;
    for (int layer = 0; layer < 6; ++layer) flops += all.layer(layer).flops(rows, 100.0);
    return flops;
  }();
  EXPECT_NEAR(all.training_flops(rows, pairs) - part.training_flops(rows, pairs), 2 * forward_of_lower,
              1e-9 * forward_of_lower);
}

TEST(Frozen, EachMistakeIsOneLine) {
  const std::string place = " at train.freeze";
  EXPECT_EQ(
      frozen_problems({"embed_token", "layers.9", ".*x"}),
      "r.yaml: the model has no such parameter (expected embed_tokens, input_layernorm, q_proj, k_proj, v_proj, "
      "o_proj, post_attention_layernorm, gate_proj, up_proj, down_proj, norm, lm_head, got embed_token)" +
          place +
          "; try embed_tokens\n"
          "r.yaml: the model has no such parameter (expected embed_tokens, input_layernorm, q_proj, k_proj, "
          "v_proj, o_proj, post_attention_layernorm, gate_proj, up_proj, down_proj, norm, lm_head, got layers.9)" +
          place +
          "\n"
          "r.yaml: the model has no such parameter (expected embed_tokens, input_layernorm, q_proj, k_proj, "
          "v_proj, o_proj, post_attention_layernorm, gate_proj, up_proj, down_proj, norm, lm_head, got .*x)" +
          place);
  EXPECT_TRUE(
      frozen_problems({"layers[.]0[.].*"}).ends_with("got layers[.]0[.].*) at train.freeze; try .*layers[.]0[.].*"));
  EXPECT_EQ(frozen_problems({"q_proj", "k_proj", ".*layers[.]0[.].*gate_proj"}),
            "r.yaml: these are one parameter, which trains or is frozen as a whole (expected all of q_proj, k_proj, "
            "v_proj, got q_proj, k_proj)" +
                place +
                "\n"
                "r.yaml: these are one parameter, which trains or is frozen as a whole (expected all of gate_proj, "
                "up_proj, got gate_proj)" +
                place);
  EXPECT_EQ(frozen_problems({"embed_tokens"}, "llama", kTied),
            "r.yaml: the embedding and the head are one tensor (expected both of model.embed_tokens and lm_head, or "
            "neither, got model.embed_tokens)" +
                place);
  EXPECT_EQ(frozen_problems({"lm_head"}, "llama", kTied),
            "r.yaml: the embedding and the head are one tensor (expected both of model.embed_tokens and lm_head, or "
            "neither, got lm_head)" +
                place);
  EXPECT_EQ(frozen_problems({"model", "lm_head"}),
            "r.yaml: all parameters are frozen (expected one that trains)" + place);
}

std::string group_problems(const std::vector<ParamGroup>& groups, const std::vector<std::string>& frozen = {},
                           const char* patch = kUntied) {
  const Model model(described_as("llama", patch), freeze(nn::common_domain, ParamNames(frozen)));
  Problems problems;
  check_groups(model, groups, kGroups, problems);
  return problems.lines();
}

TEST(ParamGroups, TheFirstThatMatchesHasTheParameter) {
  const std::vector<ParamGroup> groups = {{{"embed_tokens", "lm_head"}}, {{"layers.0"}}, {{".*layernorm"}}};
  EXPECT_EQ(group_problems(groups), "");
  EXPECT_EQ(group_problems(groups, {}, kTied), "");
  const Model model(described_as("llama", kUntied),
                    with_groups(freeze(nn::common_domain, ParamNames({"lm_head"})), groups));
  for (const nn::Flat& flat : model.flats()) {
    for (const nn::Param& param : flat.params()) {
      const std::string& name = param.segments.front().name;
      const int expected = name == "model.embed_tokens.weight"                  ? 1
                           : name.find("layers.0.") != std::string::npos        ? 2
                           : name.find("layernorm.weight") != std::string::npos ? 3
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
  EXPECT_EQ(group_problems({{{"layers.0"}}}, {"layers.0"}),
            "r.yaml: a group without a parameter that trains and is in no earlier group (got layers.0)" + place);
  EXPECT_EQ(
      group_problems({{{"k_proj", "v_proj"}}}),
      "r.yaml: these are one parameter, which is in one group as a whole (expected all of q_proj, k_proj, v_proj, "
      "got k_proj, v_proj)" +
          place);
  EXPECT_EQ(group_problems({{{"lm_head"}}}, {}, kTied),
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
