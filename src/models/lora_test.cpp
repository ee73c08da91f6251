// Which Linears of a family have adapters, what trains beside them, and PEFT's adapter_config.json.
#include "models/lora.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "models/peft_config.h"
#include "models/testing/configs.h"

namespace hawser::models {
namespace lora_test {

constexpr const char* kOdd = R"({"num_key_value_heads": 2})";

struct Added {
  ModelDescription description;
  std::string problems;
  std::set<std::string> targets;
};

Added add(const std::string& family, const LoraConfig& lora) {
  Added out{.description = described_as(family, family == "gpt_neox" ? "{}" : kOdd)};
  Problems problems;
  add_lora(out.description, lora, stored_place("r.yaml"), problems);
  out.problems = problems.lines();
  for (const BlockDescription& block : out.description.blocks) {
    for (const auto& adapter : block.attention.adapters) out.targets.insert(adapter.target);
    for (const auto& adapter : block.mlp.adapters) out.targets.insert(adapter.target);
  }
  return out;
}

TEST(Lora, AllLinearIsEveryLinearOfTheBlocksButThoseOfExperts) {
  const struct {
    const char* family;
    std::size_t linears;  // of four blocks
  } kCases[] = {{"llama", 28},   {"mistral", 28},   {"qwen2", 28},       {"qwen3", 28},
                {"mixtral", 16}, {"qwen3_moe", 16}, {"gemma3_text", 28}, {"gpt_neox", 16}};
  for (const auto& [family, linears] : kCases) {
    const Added added = add(family, {});
    EXPECT_EQ(added.problems, "") << family;
    EXPECT_EQ(added.targets.size(), linears) << family;
    const std::vector<std::string> all = adaptable_linears(added.description);
    EXPECT_EQ(added.targets, std::set<std::string>(all.begin(), all.end())) << family;
    const Model model(added.description, train_lora(nn::common_domain, {}));
    for (const nn::Flat& flat : model.flats()) {
      for (const nn::Param& param : flat.params()) {
        EXPECT_EQ(flat.spec().trainable, is_lora_tensor(param.name)) << family << " " << param.name;
      }
    }
  }
}

TEST(Lora, TargetsAreNamesEndsAndPatterns) {
  const auto targets = [](std::vector<std::string> of) { return add("llama", {.targets = std::move(of)}).targets; };
  EXPECT_EQ(targets({"q_proj"}).size(), 4u);
  EXPECT_EQ(targets({"self_attn.q_proj", "down_proj"}).size(), 8u);
  EXPECT_EQ(targets({"model.layers.2.mlp.up_proj"}), std::set<std::string>{"model.layers.2.mlp.up_proj"});
  EXPECT_EQ(targets({R"(.*\.[0-1]\..*\.(q|v)_proj)"}),
            (std::set<std::string>{"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj",
                                   "model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj"}));
  EXPECT_EQ(add("gpt_neox", {.targets = {"query_key_value"}}).targets.size(), 4u);
  const Added twice = add("llama", {.targets = {"q_proj", ".*q_proj"}});
  EXPECT_EQ(twice.problems, "");
  for (const BlockDescription& block : twice.description.blocks) EXPECT_EQ(block.attention.adapters.size(), 1u);
}

TEST(Lora, EachErrorIsOneLine) {
  const std::string linears = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj or all-linear";
  const struct {
    std::string family;
    std::vector<std::string> targets, modules;
    std::string line;
  } kCases[] = {
      {"llama",
       {"q_prj"},
       {},
       "the model has no such Linear (expected " + linears + ", got q_prj) at adapter.targets; try q_proj"},
      {"llama",
       {"proj"},
       {},
       "the model has no such Linear (expected " + linears + ", got proj) at adapter.targets; try q_proj"},
      {"llama",
       {"lm_head"},
       {},
       "this module cannot have an adapter (expected " + linears + ", got lm_head) at adapter.targets"},
      {"mixtral",
       {"w1"},
       {},
       "this module cannot have an adapter (expected q_proj, k_proj, v_proj, o_proj or all-linear, got w1) at "
       "adapter.targets"},
      {"llama",
       {"(q_proj"},
       {},
       "not a regular expression (got (q_proj) at adapter.targets; try a name such as q_proj, or .*[qv]_proj"},
      {"llama",
       {"q_proj"},
       {"lm_haed"},
       "the model has no such module (expected embed_tokens, input_layernorm, q_proj, k_proj, v_proj, o_proj, "
       "post_attention_layernorm, gate_proj, up_proj, down_proj, norm, lm_head, got lm_haed) at "
       "adapter.modules_to_save; try lm_head"},
      {"llama",
       {"o_proj"},
       {"gate_proj"},
       "these modules train in full only together (expected gate_proj, up_proj, got gate_proj) at "
       "adapter.modules_to_save"},
      {"llama",
       {"o_proj"},
       {"o_proj"},
       "a module that trains in full has an adapter (got model.layers.0.self_attn.o_proj) at adapter.modules_to_save"},
      {"gemma3_text",
       {"o_proj"},
       {"embed_tokens"},
       "the embedding and the head are one tensor, which cannot train beside adapters (got embed_tokens) at "
       "adapter.modules_to_save"},
  };
  for (const auto& [family, targets, modules, line] : kCases) {
    EXPECT_EQ(add(family, {.targets = targets, .modules_to_save = modules}).problems, "r.yaml: " + line) << family;
  }
  // All at once.
  const std::string all = add("llama", {.targets = {"a", "b"}, .modules_to_save = {"c"}}).problems;
  EXPECT_EQ(std::ranges::count(all, '\n'), 2) << all;
}

// What PEFT and transformers call otherwise than files do would be lost there.
TEST(Lora, WhatPeftWouldLoseIsRejected) {
  const std::string line = "r.yaml: transformers has another name for this module, so PEFT would lose it (got ";
  for (const auto& [family, module] : {std::pair{"gpt_neox", "embed_out"},
                                       {"mixtral", "gate"},
                                       {"mixtral", "block_sparse_moe"},
                                       {"qwen3_moe", "gate"}}) {
    EXPECT_EQ(add(family, {.modules_to_save = {module}}).problems, line + module + ") at adapter.modules_to_save");
  }
  EXPECT_EQ(add("mixtral", {.modules_to_save = {"model.norm", "lm_head"}}).problems, "");
  ModelDescription some = described_as("qwen3_moe", R"({"num_key_value_heads": 2, "mlp_only_layers": [1]})");
  EXPECT_FALSE(some.blocks[1].moe.has_value());
  EXPECT_EQ(adaptable_linears(some).size(), 16u);
}

TEST(Lora, ModulesToSaveTrainInFull) {
  const std::vector<std::string> modules = {"lm_head", "model.norm", "layers.1.mlp"};
  const Added added = add("llama", {.modules_to_save = modules});
  EXPECT_EQ(added.problems, "");
  EXPECT_EQ(added.targets.size(), 25u);  // without the three of layers.1.mlp
  const Model model(added.description, train_lora(nn::common_domain, modules));
  std::set<std::string> trained;
  for (const nn::Flat& flat : model.flats()) {
    for (const nn::Param& param : flat.params()) {
      for (const nn::Segment& segment : param.segments) {
        if (flat.spec().trainable && !is_lora_tensor(segment.name)) trained.insert(segment.name);
      }
    }
  }
  EXPECT_EQ(trained,
            (std::set<std::string>{"lm_head.weight", "model.norm.weight", "model.layers.1.mlp.gate_proj.weight",
                                   "model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.down_proj.weight"}));
}

TEST(PeftConfig, IsReadAsWritten) {
  for (const LoraConfig& lora :
       {LoraConfig{}, LoraConfig{.rank = 3, .alpha = 2.5, .dropout = 0.1, .rslora = true, .dora = true},
        LoraConfig{.targets = {"q_proj", "down_proj"}, .modules_to_save = {"lm_head"}}}) {
    Added added = add("llama", lora);
    const TemporaryFolder folder;
    folder.write(kAdapterConfigFile, lora_config_json(lora, added.description, "org/base"));
    EXPECT_TRUE(is_adapter_folder(folder.path()));
    Problems problems;
    const auto read = read_lora_config(folder.path(), problems);
    ASSERT_TRUE(read.has_value()) << problems.lines();
    EXPECT_DOUBLE_EQ(read->scale(), lora.scale());
    EXPECT_EQ(read->dropout, lora.dropout);
    EXPECT_EQ(read->dora, lora.dora);
    EXPECT_EQ(read->modules_to_save, lora.modules_to_save);
    EXPECT_EQ(add("llama", *read).targets, added.targets);
  }
  EXPECT_DOUBLE_EQ((LoraConfig{.rank = 4, .alpha = 8}).scale(), 2);
  EXPECT_DOUBLE_EQ((LoraConfig{.rank = 4, .alpha = 8, .rslora = true}).scale(), 4);
}

// Ends that also name Linears without adapters would select too many: then the names are written.
TEST(PeftConfig, WritesNamesWhereEndsSelectTooMany) {
  const LoraConfig lora{.targets = {"layers.0.self_attn.q_proj", "v_proj"}};
  const std::string text = lora_config_json(lora, add("llama", lora).description, "");
  EXPECT_EQ(nlohmann::json::parse(text)["target_modules"].size(), 5u) << text;
  EXPECT_EQ(text.find("\"v_proj\""), std::string::npos);
}

TEST(PeftConfig, EachUnsupportedOptionIsOneLine) {
  const std::string usual = R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], )";
  const TemporaryFolder folder;
  const auto read = [&](const std::string& rest) {
    folder.write(kAdapterConfigFile, usual + rest + "}");
    Problems problems;
    const auto lora = read_lora_config(folder.path(), problems);
    EXPECT_EQ(lora.has_value(), problems.empty());
    const std::string lines = problems.lines(), file = folder.path(kAdapterConfigFile) + ": ";
    return lines.starts_with(file) ? lines.substr(file.size()) : lines;
  };
  EXPECT_EQ(read(R"("bias": "none", "rank_pattern": {}, "layers_to_transform": null, "eva_config": null,
                    "megatron_core": "megatron.core", "loftq_config": {}, "use_qalora": false,
                    "qalora_group_size": 16, "lora_bias": false, "exclude_modules": null,
                    "init_lora_weights": "gaussian")"),
            "");
  EXPECT_EQ(read(R"("layers_to_transform": [], "kasa_config": null, "use_bdlora": null, "target_parameters": [],
                    "alpha_pattern": {}, "trainable_token_indices": {}, "use_qalora": 0, "exclude_modules": "")"),
            "");
  for (const char* on : {"0", "false", "{}", "\"\""}) {  // PEFT adapts the first layer, or none
    EXPECT_EQ(read(cat(R"("layers_to_transform": )", on)).substr(0, 43), "an option of PEFT that is not supported (ex")
        << on;
  }
  for (const char* option : {"arrow_config", "kasa_config", "monteclora_config", "use_bdlora", "velora_config"}) {
    EXPECT_EQ(read(cat('"', option, "\": {}")),  // on, with defaults
              cat("an option of PEFT that is not supported (expected none, got an object) at ", option));
  }
  EXPECT_EQ(read(R"("bias": "all")"), "not supported (expected none, got 'all') at bias");
  EXPECT_EQ(read(R"("rank_pattern": {"q_proj": 4})"),
            "an option of PEFT that is not supported (expected none, got an object) at rank_pattern");
  EXPECT_EQ(read(R"("lora_dropout": 1)"), "out of range (expected below 1, got 1) at lora_dropout");
  EXPECT_EQ(read(R"("layers_to_transform": [0])"),
            "an option of PEFT that is not supported (expected none, got a list) at layers_to_transform");
  EXPECT_EQ(
      read(R"("init_lora_weights": "pissa")"),
      "an initialisation that changes the base model is not supported (expected true, false, gaussian, eva or "
      "orthogonal, got 'pissa') at init_lora_weights; try PEFT's option path_initial_model_for_weight_conversion, "
      "which saves a plain LoRA");
  const auto other = [&](const std::string& text) {
    folder.write(kAdapterConfigFile, text);
    Problems problems;
    read_lora_config(folder.path(), problems);
    return problems.lines().substr(folder.path(kAdapterConfigFile).size() + 2);
  };
  EXPECT_EQ(other(R"({"peft_type": "IA3", "r": 1, "lora_alpha": 1, "target_modules": "all-linear"})"),
            "not supported (expected LORA, got 'IA3') at peft_type");
  EXPECT_EQ(other(R"({"peft_type": "IA3", "feedforward_modules": ["down_proj"], "target_modules": ["k_proj"]})"),
            "not supported (expected LORA, got 'IA3') at peft_type");
  EXPECT_EQ(other(R"({"peft_type": "LORA", "r": 0, "lora_alpha": 1, "target_modules": 7})"),
            "invalid value (expected a whole number from 1 to 1048576, got 0) at r\n" +
                folder.path(kAdapterConfigFile) +
                ": invalid value (expected a list of names, got 7) at target_modules");
  Problems none;
  EXPECT_FALSE(read_lora_config(folder.path("none"), none).has_value());
  EXPECT_EQ(none.size(), 1u);
}

// PEFT matches a text as a regular expression against whole names.
TEST(PeftConfig, ATextOfTargetsIsAPattern) {
  const TemporaryFolder folder;
  folder.write(kAdapterConfigFile, R"({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": "q_proj"})");
  Problems problems;
  const auto lora = read_lora_config(folder.path(), problems);
  ASSERT_TRUE(lora.has_value());
  const std::string line = add("llama", *lora).problems;
  EXPECT_NE(line.find("the model has no such Linear"), std::string::npos) << line;
  EXPECT_NE(line.find(", got q_proj)"), std::string::npos) << line;
}

}  // namespace lora_test
}  // namespace hawser::models
