// Every optimizer.kind, through recipes: meshes train like one rank, and a run that is saved on one mesh continues on
// another.
#include "recipe_case.h"

namespace hawser {
namespace optimizer_recipe_test {

using testing::CaseName;
using testing::CaseTest;
using testing::RecipeMesh;
using testing::RecipeModel;
using testing::RunOutcome;
using testing::Tensors;

struct Kind {
  std::string name;
  std::vector<std::string> keys;
  // Of weights and losses, relative. Where a mesh adds in another order, an element of Lion may have another sign, a
  // number near the middle of two codes the other code, and a sum near a bf16 number the other neighbour.
  double bound = 1e-5;
};

std::vector<Kind> kinds() {
  return {{"ema", {"optimizer.ema=0.9"}},
          {"lion", {"optimizer.kind=lion", "optimizer.learning_rate=0.001"}, 1e-4},
          {"sgd", {"optimizer.kind=sgd", "optimizer.learning_rate=0.1"}},
          {"adafactor", {"optimizer.kind=adafactor"}},
          {"adafactor_scaled",
           {"optimizer.kind=adafactor", "optimizer.scale_parameter=true", "optimizer.weight_decay=0.1",
            "optimizer.learning_rate=0.1"}},
          {"adafactor_bf16",
           {"optimizer.kind=adafactor", "optimizer.master_dtype=bf16", "optimizer.relative_step=true"},
           1e-3},
          {"muon", {"optimizer.kind=muon"}, 1e-3},
          {"muon_bf16",
           {"optimizer.kind=muon", "optimizer.master_dtype=bf16", "optimizer.nesterov=false", "optimizer.ema=0.5",
            "memory.optimizer_offload=true"},
           3e-3},
          {"adamw_8bit", {"optimizer.kind=adamw_8bit"}, 1e-3},
          {"adamw_bf16", {"optimizer.state_dtype=bf16", "optimizer.master_dtype=bf16"}, 1e-3},
          {"sgd_bf16",
           {"optimizer.kind=sgd", "optimizer.master_dtype=bf16", "optimizer.momentum=0", "optimizer.learning_rate=1"},
           1e-3},
          {"lion_bf16",
           {"optimizer.kind=lion", "optimizer.learning_rate=0.001", "optimizer.state_dtype=bf16",
            "memory.optimizer_offload=true"},
           1e-3},
          {"adamw_8bit_bf16", {"optimizer.kind=adamw_8bit", "optimizer.master_dtype=bf16"}, 1e-3}};
}

struct OptimizerCase {
  Kind kind;
  RecipeMesh mesh;

  std::string name() const { return testing::joined(kind.name, mesh.name); }
  friend void PrintTo(const OptimizerCase& c, std::ostream* out) { *out << c.name(); }
};

// Gemma 3 without key biases, whose gradients are only noise; its tensors are large enough for states of 8 bits, and
// two tensor ranks cut no block of them.
std::string wide_config() {
  const std::string folder = testing::shared_folder() + "wide", path = folder + "/config.json";
  testing::on_one_rank([&] {
    if (std::filesystem::exists(path)) return true;
    std::filesystem::create_directories(folder);
    std::ifstream in(cat(testing::kSourceFolder, "/tests/golden/families/gemma3/config.json"));
    nlohmann::json config = nlohmann::json::parse(in);
    config["hidden_size"] = 32;
    config["num_attention_heads"] = 4;
    config["num_key_value_heads"] = 2;
    config["head_dim"] = 128;
    config["intermediate_size"] = 512;
    config["initializer_range"] = 0.1;
    std::ofstream(path) << config.dump();
    return true;
  });
  return path;
}

Recipe recipe_of(const Kind& kind, const RecipeMesh& mesh, const std::string& output) {
  Recipe recipe = testing::base_recipe(RecipeModel::windows, 0);
  recipe.model.config = wide_config();
  recipe = override_recipe(recipe, kind.keys);
  recipe.output = testing::shared_folder() + output;
  recipe.train.micro_batch_size = 8 / std::max(1, mesh.data_ranks);
  return override_recipe(recipe, mesh.keys);
}

const RunOutcome& of_one_rank(const Kind& kind) {
  static std::map<std::string, RunOutcome> references;
  auto [found, is_new] = references.try_emplace(kind.name);
  if (is_new) {
    const Recipe recipe = recipe_of(kind, {.name = "one", .keys = {}}, "one_" + kind.name);
    found->second =
        testing::on_one_rank([&] { return testing::outcome_of(recipe.output, testing::fit(recipe, nullptr)); });
  }
  return found->second;
}

double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  return std::sqrt(sum);
}

void expect_like_one_rank(const RunOutcome& mesh, const RunOutcome& one, double bound) {
  ASSERT_EQ(mesh.losses.size(), one.losses.size());
  for (std::size_t step = 0; step < one.losses.size(); ++step) {
    EXPECT_NEAR(mesh.losses[step], one.losses[step], bound * one.losses[step]);
  }
  EXPECT_NEAR(mesh.validation, one.validation, bound * one.validation);
  ASSERT_EQ(mesh.last.size(), one.last.size());
  double weights = 0, moved = 0, trained = 0;
  for (const auto& [name, values] : one.last) {
    const std::vector<float>& other = mesh.last.at(name);
    ASSERT_EQ(other.size(), values.size()) << name;
    if (name.find('/') != std::string::npos && !name.starts_with("optimizer/ema/")) continue;  // of the optimizer
    std::vector<float> difference = values, change = values;
    for (std::size_t i = 0; i < values.size(); ++i) difference[i] -= other[i], change[i] -= one.first.at(name)[i];
    weights += std::pow(norm(values), 2), moved += std::pow(norm(difference), 2), trained += std::pow(norm(change), 2);
  }
  EXPECT_LT(std::sqrt(moved), bound * std::sqrt(weights));
  EXPECT_GT(std::sqrt(trained), 2e-3 * std::sqrt(weights));  // more than any bound
}

using OptimizerOnMesh = CaseTest<OptimizerCase>;

TEST_P(OptimizerOnMesh, TrainsLikeOneRank) {
  const auto& [kind, mesh] = GetParam();
  const Recipe recipe = recipe_of(kind, mesh, "mesh_" + GetParam().name());
  const train::FitResult result = testing::fit(recipe, the_world);
  const RunOutcome got = testing::on_one_rank([&] { return testing::outcome_of(recipe.output, result); });
  expect_like_one_rank(got, of_one_rank(kind), kind.bound);
}

const std::string kTensor2 = "parallel.tensor_parallel_degree=2", kState = "parallel.sharding=optimizer",
                  kStages2 = "parallel.pipeline_parallel_degree=2", kShard2 = "parallel.hybrid_shard_degree=2",
                  kContext2 = "parallel.context_parallel_degree=2";

std::vector<RecipeMesh> meshes() {
  switch (the_world->size()) {
    case 2:
      return {{"shard2", {}, 2}, {"tensor2", {kTensor2}, 1}, {"shard2_state", {kState}, 2}};
    case 4:
      return {{"tensor2_shard2", {kTensor2}, 2},
              {"shard2_replicate2", {kShard2}, 4},
              {"stages2_shard2_state", {kStages2, kState}, 2},
              {"tensor2_context2", {kTensor2, kContext2}, 1}};
    default:
      return {};
  }
}

std::vector<OptimizerCase> pairs(std::size_t meshes_of_each) {
  std::vector<OptimizerCase> out;
  const std::vector<RecipeMesh> all = meshes();
  const std::vector<Kind> of = kinds();
  for (std::size_t k = 0; k < of.size(); ++k) {
    for (std::size_t m = 0; m < std::min(meshes_of_each, all.size()); ++m) {
      out.push_back({of[k], all[(k + m) % all.size()]});
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Covering, OptimizerOnMesh, ::testing::ValuesIn(pairs(2)), CaseName());

using FullOptimizerOnMesh = OptimizerOnMesh;
TEST_P(FullOptimizerOnMesh, TrainsLikeOneRank) {
  const auto& [kind, mesh] = GetParam();
  const Recipe recipe = recipe_of(kind, mesh, "full_" + GetParam().name());
  const train::FitResult result = testing::fit(recipe, the_world);
  const RunOutcome got = testing::on_one_rank([&] { return testing::outcome_of(recipe.output, result); });
  expect_like_one_rank(got, of_one_rank(kind), kind.bound);
}
INSTANTIATE_TEST_SUITE_P(FullProducts, FullOptimizerOnMesh, ::testing::ValuesIn(pairs(100)), CaseName());

struct ResumeCase {
  Kind kind;
  RecipeMesh from, to;

  std::string name() const { return testing::joined(kind.name, from.name, "to", to.name); }
  friend void PrintTo(const ResumeCase& c, std::ostream* out) { *out << c.name(); }
};

using ResumedOptimizer = CaseTest<ResumeCase>;

TEST_P(ResumedOptimizer, TrainsOnLikeOneRank) {
  const auto& [kind, from, to] = GetParam();
  const Recipe first = recipe_of(kind, from, "resumed_" + GetParam().name());
  Recipe second = recipe_of(kind, to, "resumed_" + GetParam().name());
  testing::fit(override_recipe(first, {"train.steps=2"}), the_world);
  const train::FitResult result = testing::fit(second, the_world, true);
  const RunOutcome resumed = testing::on_one_rank([&] { return testing::outcome_of(second.output, result); });
  EXPECT_EQ(resumed.losses.size(), 3u);
  expect_like_one_rank(resumed, of_one_rank(kind), kind.bound);
  if (from.name != to.name) return;
  // On one mesh no bit differs from a run that had not stopped.
  Recipe whole = first;
  whole.output = testing::shared_folder() + "whole_" + GetParam().name();
  const train::FitResult not_stopped = testing::fit(whole, the_world);
  const RunOutcome expected = testing::on_one_rank([&] { return testing::outcome_of(whole.output, not_stopped); });
  EXPECT_EQ(resumed.losses, expected.losses);
  EXPECT_TRUE(testing::same_bits(resumed.last, expected.last));
}

// Each kind from one mesh to another, and to the same mesh.
std::vector<ResumeCase> resumed() {
  std::vector<ResumeCase> out;
  const std::vector<RecipeMesh> all = meshes();
  if (all.empty()) return out;
  const std::vector<Kind> of = kinds();
  for (std::size_t k = 0; k < of.size(); ++k) {
    const bool same = (k + static_cast<std::size_t>(the_world->size()) / 2) % 2 == 0;
    out.push_back({of[k], all[k % all.size()], all[(k + (same ? 0 : 1)) % all.size()]});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, ResumedOptimizer, ::testing::ValuesIn(resumed()), CaseName());

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OptimizerOnMesh);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FullOptimizerOnMesh);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ResumedOptimizer);

}  // namespace optimizer_recipe_test
}  // namespace hawser
