// Tests of the layout checks, default ranks, and the texts generated from the schema table.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/testing/temporary_folder.h"
#include "base/testing/test_paths.h"
#include "config/config.h"
#include "config/schema.h"

namespace hawser {
namespace config_test {

std::string layout(int world, int hybrid, int context, std::int64_t global = 0, std::int64_t micro = 1) {
  Recipe recipe;
  recipe.file = "r.yaml";
  recipe.parallel.hybrid_shard_degree = hybrid;
  recipe.parallel.context_parallel_degree = context;
  recipe.train.global_batch_size = global;
  recipe.train.micro_batch_size = micro;
  Problems problems;
  check_layout(recipe, world, problems);
  return problems.lines();
}

TEST(CheckLayout, AcceptsEveryMeshThatDivides) {
  for (const int world : {1, 2, 4, 8})
    for (int context = 1; context <= world; context *= 2) {
      EXPECT_EQ(layout(world, 0, context), "") << world << " " << context;
      EXPECT_EQ(layout(world, 1, context), "") << world << " " << context;
      for (int hybrid = context; hybrid <= world; hybrid *= 2) EXPECT_EQ(layout(world, hybrid, context), "");
    }
  EXPECT_EQ(layout(6, 2, 2, 6, 2), "");
}

TEST(CheckLayout, TensorRanksAreThoseOfNoOtherAxis) {
  const auto layout_of = [](int world, const std::vector<std::string>& keys) {
    Recipe recipe = override_recipe(Recipe(), keys);
    recipe.file = "r.yaml";
    recipe.train.global_batch_size = 8;
    Problems problems;
    check_layout(recipe, world, problems);
    return problems.lines();
  };
  EXPECT_EQ(layout_of(8, {"parallel.tensor_parallel_degree=2", "parallel.hybrid_shard_degree=4"}), "");
  EXPECT_EQ(layout_of(8, {"parallel.tensor_parallel_degree=8"}), "");
  EXPECT_EQ(layout_of(6, {"parallel.tensor_parallel_degree=4"}),
            "--set: ranks do not divide by the degrees (expected ranks a multiple of 4, got 6 ranks) at "
            "parallel.tensor_parallel_degree; try --ranks 4 or 8, or parallel.tensor_parallel_degree: 2");
  EXPECT_EQ(layout_of(12, {"parallel.tensor_parallel_degree=4", "parallel.context_parallel_degree=2"}),
            "--set: ranks do not divide by the degrees (expected ranks a multiple of context x tensor = 8, got 12 "
            "ranks) at parallel.tensor_parallel_degree; try --ranks 8 or 16, or parallel.tensor_parallel_degree: 2");
  EXPECT_EQ(layout_of(8, {"parallel.tensor_parallel_degree=2", "parallel.hybrid_shard_degree=8"}),
            "--set: degrees do not divide (expected a divisor of 8 / 2 = 4 ranks, got 8) at "
            "parallel.hybrid_shard_degree; try "
            "parallel.hybrid_shard_degree: 1, 2 or 4");
  Recipe recipe =
      override_recipe(Recipe(), {"parallel.tensor_parallel_degree=2", "parallel.context_parallel_degree=2"});
  EXPECT_EQ(default_ranks(recipe, DeviceChoice::cpu, 0), 4);
}

TEST(CheckLayout, SuggestsAValidValue) {
  EXPECT_EQ(layout(6, 0, 4),
            "r.yaml: ranks do not divide by the degrees (expected ranks a multiple of 4, got 6 ranks) at "
            "parallel.context_parallel_degree; try --ranks 4 or 8, or parallel.context_parallel_degree: 2");
  EXPECT_EQ(layout(1, 0, 2),
            "r.yaml: ranks do not divide by the degrees (expected ranks a multiple of 2, got 1 rank) at "
            "parallel.context_parallel_degree; try --ranks 2");
  EXPECT_EQ(layout(8, 3, 1),
            "r.yaml: degrees do not divide (expected a divisor of 8 ranks, got 3) at parallel.hybrid_shard_degree; try "
            "parallel.hybrid_shard_degree: 1, 2, 4 or 8");
  EXPECT_EQ(layout(8, 6, 2),
            "r.yaml: degrees do not divide (expected a multiple of context_parallel_degree 2 that divides 8 ranks, got "
            "6) at parallel.hybrid_shard_degree; try parallel.hybrid_shard_degree: 2, 4 or 8");
  EXPECT_EQ(layout(8, 0, 2, 9, 2),
            "r.yaml: batch does not divide over the ranks (expected a multiple of 8: 4 data ranks x micro_batch_size "
            "2, got 9) at train.global_batch_size; try train.global_batch_size: 8 or 16");
  EXPECT_NE(layout(4, 16, 1), "");
  EXPECT_NE(layout(4, 0, 1, 1), "");
}

TEST(CheckLayout, CheckMeshIgnoresTheBatch) {
  Recipe recipe;
  Problems problems;
  check_mesh(recipe, 8, problems);
  EXPECT_TRUE(problems.empty());
}

TEST(DefaultRanks, IsTheProductOfTheDegreesOnTheCpu) {
  Recipe recipe;
  EXPECT_EQ(default_ranks(recipe, DeviceChoice::cpu), 1);
  recipe.parallel.context_parallel_degree = 2;
  EXPECT_EQ(default_ranks(recipe, DeviceChoice::cpu), 2);
  recipe.parallel.hybrid_shard_degree = 4;
  EXPECT_EQ(default_ranks(recipe, DeviceChoice::cpu), 4);
  EXPECT_EQ(default_ranks(recipe, DeviceChoice::cuda, 8), 8);
  recipe.parallel.hybrid_shard_degree = 1;
  EXPECT_EQ(default_ranks(recipe, DeviceChoice::automatic), 2);
  recipe.run.ranks = 6;
  EXPECT_EQ(default_ranks(recipe, DeviceChoice::cuda, 8), 6);
}

Recipe unlike_the_default() {
  Recipe recipe;
  recipe.name = "a name: with \"quotes\"";
  recipe.model.path = "../models/x";
  recipe.data.train = {"a/*.jsonl", "*.txt", "- odd"};
  recipe.data.sequence_length = 128;
  recipe.data.pack = Packing::chunks;
  recipe.data.validation_fraction = 0.125;
  recipe.memory.per_layer = {Checkpointing::full, Checkpointing::selective};
  recipe.memory.capacity = Bytes(12345678901);
  recipe.memory.host_capacity = Bytes(123456789012);
  recipe.memory.optimizer_offload.reset();
  recipe.memory.activation_offload = true;
  recipe.precision.compute = ComputePrecision::bf16;
  recipe.train.steps = 5;
  recipe.train.seed = 18446744073709551615u;
  recipe.optimizer.learning_rate = 1e-5;
  recipe.adapter = {.kind = AdapterKind::lora, .rank = 3, .targets = {"q_proj", ".*[0-9]: #x"}, .rslora = true};
  recipe.run.deterministic = false;
  recipe.output = "yes";
  return recipe;
}

Recipe read_back(const std::string& text) {
  const TemporaryFolder folder;
  return read_recipe(folder.write("recipe.yaml", text), {});
}

TEST(Texts, RecipesRoundTrip) {
  const Recipe recipe = unlike_the_default();
  EXPECT_EQ(recipe_json(read_back(commented_recipe(recipe))), recipe_json(recipe));
  EXPECT_EQ(recipe_json(read_back(recipe_json(recipe))), recipe_json(recipe));
}

TEST(Texts, TheCommentedRecipeHoldsEveryKeyWithItsHelp) {
  const std::string text = commented_recipe(Recipe{});
  for (const Key& key : schema()) {
    EXPECT_NE(text.find(key.leaf() + ":"), std::string::npos) << key.name;
    EXPECT_NE(text.find(key.help), std::string::npos) << key.name;
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << line;
}

TEST(Texts, TheCommentedRecipeGivesReasons) {
  Recipe recipe;
  recipe.name = "a";
  recipe.model.config = "c.json";
  recipe.data.train = {"t.jsonl"};
  recipe.train.steps = 7;
  recipe.data.sequence_length = 8;
  recipe.output = "o";
  std::string reason = "for a reason that takes more than a line";
  for (int i = 0; i < 12; ++i) reason += ", and another one";
  const std::string text =
      commented_recipe(recipe, {.head = "Fits.\nTwo lines.", .why = {{"train.steps", reason}, {"name", "short: yes"}}});
  EXPECT_NE(text.find("\n#\n# Fits.\n# Two lines.\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n# why: short: yes\nname: a"), std::string::npos) << text;
  EXPECT_NE(text.find("\n  # why: for a reason"), std::string::npos) << text;
  EXPECT_NE(text.find("another one\n  steps: 7 "), std::string::npos) << text;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << line;
  EXPECT_EQ(recipe_json(read_back(text)), recipe_json(recipe));
}

// The short form has what differs from the defaults, or has a reason, and is read back alike.
TEST(Texts, TheShortRecipeHoldsWhatWasChosen) {
  const Recipe recipe = unlike_the_default();
  EXPECT_EQ(recipe_json(read_back(commented_recipe(recipe, {.chosen_only = true}))), recipe_json(recipe));
  Recipe few;
  few.name = "short";
  few.model.config = "c.json";
  few.data.train = {"t.jsonl"};
  few.data.sequence_length = 8;
  few.train.steps = 7;
  few.output = "o";
  const std::string text =
      commented_recipe(few, {.why = {{"train.micro_batch_size", "one at a time"}}, .chosen_only = true});
  EXPECT_NE(text.find("  # why: one at a time\n  micro_batch_size: 1 "), std::string::npos) << text;
  EXPECT_NE(text.find("\ntrain:\n  steps: 7 "), std::string::npos) << text;
  for (const char* absent : {"parallel", "seed", "report", "optimizer", "# mlflow"}) {
    EXPECT_EQ(text.find(std::string(absent) + ":"), std::string::npos) << absent << "\n" << text;
  }
  EXPECT_EQ(recipe_json(read_back(text)), recipe_json(few));
}

TEST(Texts, JsonHoldsEveryKey) {
  const auto json = nlohmann::json::parse(recipe_json(unlike_the_default()));
  EXPECT_EQ(json["memory"]["activation_checkpointing"], nlohmann::json({"full", "selective"}));
  EXPECT_TRUE(json["model"]["config"].is_null());
  for (const Key& key : schema()) {
    const auto& place = key.section().empty() ? json : json[key.section()];
    EXPECT_TRUE(place.contains(key.leaf())) << key.name;
  }
}

// Shell completion lists exactly what the reader accepts.
TEST(Schema, ChoicesAreAccepted) {
  int keys_with_choices = 0;
  for (const Key& key : schema()) {
    keys_with_choices += key.choices.empty() ? 0 : 1;
    for (const std::string& choice : key.choices) {
      Recipe recipe;
      EXPECT_FALSE(key.read(YAML::Node(choice), recipe)) << key.name << ": " << choice;
      EXPECT_TRUE(key.is_path || key.values.find(choice) != std::string::npos) << key.name << ": " << choice;
    }
    // Every boolean and every enum has choices.
    const bool choices = key.values.find(", ") != std::string::npos && key.write(Recipe{}).is_string() &&
                         key.name != "report.prometheus_address";
    EXPECT_TRUE(!choices || !key.choices.empty()) << key.name << ": " << key.values;
    EXPECT_TRUE(!key.write(Recipe{}).is_boolean() || !key.choices.empty()) << key.name;
  }
  EXPECT_GE(keys_with_choices, 14);
}

TEST(Schema, NamesAreUniqueAndSectionsKnown) {
  std::set<std::string> names;
  for (const Key& key : schema()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_TRUE(key.section().empty() || is_section(key.section())) << key.name;
    EXPECT_FALSE(key.help.empty()) << key.name;
    // The default of every optional key is accepted when read back.
    Recipe recipe;
    const auto value = key.write(recipe);
    if (value.is_null() || key.needed != Needed::never) continue;
    EXPECT_FALSE(key.read(YAML::Load(value.dump()), recipe)) << key.name;
  }
}

// HAWSER_UPDATE_DOCS=1 regenerates the page.
TEST(RecipeJson, ASectionIsReadBack) {
  Recipe recipe;
  recipe.adapter = {.kind = AdapterKind::lora, .rank = 3, .dropout = 0.5, .targets = {"q_proj", "#: [x]*"}};
  recipe.moe = {.balancing = ExpertBalancing::none, .z_loss_coefficient = 0.25};
  const std::string text = recipe_json(recipe);
  const Recipe adapter = stored_section(text, "adapter"), moe = stored_section(text, "moe");
  EXPECT_EQ(adapter.adapter.kind, AdapterKind::lora);
  EXPECT_EQ(adapter.adapter.rank, 3);
  EXPECT_EQ(adapter.adapter.dropout, 0.5);
  EXPECT_EQ(adapter.adapter.targets, recipe.adapter.targets);
  EXPECT_EQ(adapter.moe.balancing, ExpertBalancing::model);
  EXPECT_EQ(moe.moe.balancing, ExpertBalancing::none);
  EXPECT_EQ(moe.moe.z_loss_coefficient, 0.25);
  EXPECT_FALSE(moe.moe.aux_loss_coefficient.has_value());
  for (const char* other : {"", "7", "{}", R"({"adapter": 7})", R"({"adapter": {"of_a_later_version": 1}})"}) {
    EXPECT_EQ(stored_section(other, "adapter").adapter.kind, AdapterKind::none) << other;
  }
  try {
    stored_section(R"({"adapter": {"kind": "lora", "rank": "many"}})", "adapter");
    ADD_FAILURE();
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(),
                 "the checkpoint's recipe cannot be read (expected a whole number of at least 1, got \"many\") at "
                 "adapter.rank");
  }
}

TEST(Docs, TheReferenceMatchesTheSchema) {
  const std::string path = std::string(testing::kSourceFolder) + "/docs/recipe.md";
  if (std::getenv("HAWSER_UPDATE_DOCS") != nullptr) std::ofstream(path) << recipe_reference_markdown();
  EXPECT_EQ(read_file(path), recipe_reference_markdown()) << "run HAWSER_UPDATE_DOCS=1 build/cpu/config_test";
}

}  // namespace config_test
}  // namespace hawser
