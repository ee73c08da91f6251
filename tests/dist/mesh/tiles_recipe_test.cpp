// Recipes with MLPs in tiles of rows train as those without, but for the order of sums; and a policy that recomputes
// the inputs of MLPs changes no bit.
#include "recipe_case.h"

namespace hawser {
namespace tiles_recipe_test {

using testing::CaseName;
using testing::CaseTest;
using testing::Feature;
using testing::RecipeCase;
using testing::RecipeModel;
using testing::RunOutcome;

struct Kind {
  std::string name;
  std::vector<std::string> keys;
  bool exact = false;
};

struct TilesCase {
  RecipeCase on;
  Kind kind;

  std::string name() const { return testing::joined(kind.name, on.name()); }
  friend void PrintTo(const TilesCase& c, std::ostream* out) { *out << c.name(); }
};

// With as many rows as there are for two tiles, on a rank.
Recipe whole(const RecipeCase& on, const std::string& output) {
  Recipe recipe = override_recipe(recipe_of(on, output), on.mesh.keys);
  recipe.train.micro_batch_size = 4;
  recipe.train.global_batch_size = 8;
  return recipe;
}

RunOutcome outcome(const Recipe& recipe) {
  const train::FitResult result = testing::fit(recipe, the_world);
  return testing::on_one_rank([&] { return testing::outcome_of(recipe.output, result); });
}

double largest_difference(const testing::Tensors& a, const testing::Tensors& b) {
  double largest = 0;
  for (const auto& [name, values] : a) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(double(values[i]) - double(b.at(name).at(i))));
    }
  }
  return largest;
}

using TiledRecipe = CaseTest<TilesCase>;

TEST_P(TiledRecipe, TrainsAsWhole) {
  const auto& [on, kind] = GetParam();
  static std::map<std::string, RunOutcome> references;
  auto [found, is_new] = references.try_emplace(on.name());
  if (is_new) found->second = outcome(whole(on, "whole_" + on.name()));
  const RunOutcome &expected = found->second,
                   got = outcome(override_recipe(whole(on, "tiled_" + GetParam().name()), kind.keys));
  ASSERT_EQ(got.losses.size(), expected.losses.size());
  if (kind.exact) {
    EXPECT_EQ(got.losses, expected.losses);
    EXPECT_EQ(got.norms, expected.norms);
    EXPECT_TRUE(testing::same_bits(got.first, expected.first));
    EXPECT_TRUE(testing::same_bits(got.last, expected.last));
    return;
  }
  // After the first step, weights that differ in their last bits may be rounded to other values of FP8.
  const double later = on.has(Feature::fp8) ? 5e-3 : 1e-4;
  for (std::size_t step = 0; step < expected.losses.size(); ++step) {
    const double most = step == 0 ? 1e-5 : later;
    EXPECT_NEAR(got.losses[step], expected.losses[step], most) << "step " << step;
    EXPECT_NEAR(got.norms[step], expected.norms[step], most * expected.norms[step]) << "step " << step;
  }
  EXPECT_NEAR(got.validation, expected.validation, later);
  EXPECT_LT(largest_difference(got.first, expected.first), 1e-5);
}

std::vector<TilesCase> cases() {
  const std::string tile = "memory.mlp_tile_rows=128";
  const std::vector<Kind> kinds{{"block", {"memory.activation_checkpointing=block"}, true},
                                {"tiles", {tile}},
                                {"tiles_block", {tile, "memory.activation_checkpointing=block"}},
                                {"tiles_offload", {tile, "memory.activation_offload=true"}}};
  std::vector<testing::RecipeMesh> meshes{{"one", {}, 1}};
  if (the_world->size() == 2) {
    meshes = {{"shard2", {}, 2},
              {"stages2_zero_bubble",
               {"parallel.pipeline_parallel_degree=2", "parallel.pipeline_schedule=zero_bubble"},
               1,
               3}};
  }
  if (the_world->size() > 2) return {};
  std::vector<TilesCase> out;
  const std::vector<std::vector<Feature>> sets{
      {Feature::packed}, {Feature::lora, Feature::packed}, {Feature::fp8, Feature::local}};
  constexpr std::array kModels = {RecipeModel::dense_tied, RecipeModel::windows, RecipeModel::fused_qkv};
  for (const testing::RecipeMesh& mesh : meshes) {
    for (std::size_t turn = 0; turn < sets.size(); ++turn) {
      const RecipeCase on{kModels[turn], mesh, sets[turn]};
      for (const Kind& kind : kinds) out.push_back({on, kind});
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Kinds, TiledRecipe, ::testing::ValuesIn(cases()), CaseName());

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(TiledRecipe);

}  // namespace tiles_recipe_test
}  // namespace hawser
