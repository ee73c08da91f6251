// Recipes that keep activations, the optimizer's state or weights in host memory train as those that do not: losses,
// norms, gradients, trained weights and the validation loss have the same bits.
#include "recipe_case.h"

namespace hawser {
namespace offload_recipe_test {

using testing::CaseName;
using testing::CaseTest;
using testing::Feature;
using testing::RecipeCase;
using testing::RecipeMesh;
using testing::RecipeModel;
using testing::RunOutcome;

struct Offload {
  std::string name;
  std::vector<std::string> keys;
};

struct OffloadCase {
  RecipeCase on;
  Offload offload;

  std::string name() const { return testing::joined(offload.name, on.name()); }
  friend void PrintTo(const OffloadCase& c, std::ostream* out) { *out << c.name(); }
};

Recipe resident(const RecipeCase& on, const std::string& output) {
  return override_recipe(recipe_of(on, output), on.mesh.keys);
}

RunOutcome outcome(const Recipe& recipe, const train::FitResult& result) {
  return testing::on_one_rank([&] { return testing::outcome_of(recipe.output, result); });
}

void expect_same(const RunOutcome& a, const RunOutcome& b) {
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.norms, b.norms);
  EXPECT_EQ(a.validation, b.validation);
  EXPECT_TRUE(testing::same_bits(a.first, b.first));
  EXPECT_TRUE(testing::same_bits(a.last, b.last));
}

using OffloadedRecipe = CaseTest<OffloadCase>;

TEST_P(OffloadedRecipe, ChangesNoBit) {
  const auto& [on, offload] = GetParam();
  static std::map<std::string, RunOutcome> references;
  auto [found, is_new] = references.try_emplace(on.name());
  if (is_new) {
    const Recipe recipe = resident(on, "resident_" + on.name());
    const train::FitResult result = testing::fit(recipe, the_world);
    EXPECT_EQ(result.offload, "");
    found->second = outcome(recipe, result);
  }
  const Recipe recipe = override_recipe(resident(on, "offloaded_" + GetParam().name()), offload.keys);
  const train::FitResult result = testing::fit(recipe, the_world);
  EXPECT_NE(result.offload, "");
  expect_same(outcome(recipe, result), found->second);
}

std::vector<Offload> offloads() {
  const auto activations = [](int window) {
    return Offload{cat("activations", window),
                   {"memory.activation_offload=true", cat("memory.activation_offload_window=", window)}};
  };
  const std::string state = "memory.optimizer_offload=true", weights = "memory.weight_offload=true";
  return {activations(1),     activations(2),         activations(1000),
          {"state", {state}}, {"weights", {weights}}, {"all", {"memory.activation_offload=true", state, weights}}};
}

std::vector<RecipeMesh> meshes() {
  const std::string tensor2 = "parallel.tensor_parallel_degree=2", stages2 = "parallel.pipeline_parallel_degree=2",
                    context2 = "parallel.context_parallel_degree=2";
  switch (the_world->size()) {
    case 1:
      return {{"one", {}, 1}};
    case 2:
      return {{"shard2", {}, 2},
              {"shard2_state", {"parallel.sharding=zero2"}, 2},
              {"context2", {context2}, 1},
              {"tensor2", {tensor2}, 1},
              {"stages2", {stages2}, 1, 3},
              {"stages2_zero_bubble", {stages2, "parallel.pipeline_schedule=zero_bubble"}, 1, 3}};
    case 4:
      return {{"tensor2_shard2", {tensor2}, 2}, {"stages2_shard2", {stages2}, 2, 3}};
    default:
      return {};
  }
}

// Each kind of offload on each mesh; models and features take turns.
std::vector<OffloadCase> cases() {
  constexpr std::array kModels = {RecipeModel::dense_tied, RecipeModel::windows, RecipeModel::experts};
  const std::vector<std::vector<Feature>> sets{{Feature::packed, Feature::clipping},
                                               {Feature::lora, Feature::block},
                                               {Feature::fp8, Feature::packed, Feature::block},
                                               {Feature::lora, Feature::local, Feature::full}};
  std::vector<OffloadCase> out;
  const std::vector<RecipeMesh> all = meshes();
  for (std::size_t m = 0; m < all.size(); ++m) {
    // One reference for the kinds of a mesh, and another one for every second of them.
    for (std::size_t turn = 0; turn < 2; ++turn) {
      const RecipeCase on{kModels[(m + turn) % kModels.size()], all[m], sets[(2 * m + turn) % sets.size()]};
      const std::vector<Offload> kinds = offloads();
      for (std::size_t kind = turn; kind < kinds.size(); kind += 2) out.push_back({on, kinds[kind]});
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Kinds, OffloadedRecipe, ::testing::ValuesIn(cases()), CaseName());

// A run that continues with other settings of offload is the run that did not stop.
TEST(OffloadedRun, ResumesWithOtherSettings) {
  if (the_world->size() > 2) return;
  const RecipeCase on{RecipeModel::dense_tied, {"shards", {}, the_world->size()}, {Feature::packed}};
  const Recipe whole = resident(on, "resumed_offload_whole");
  const RunOutcome expected = outcome(whole, testing::fit(whole, the_world));
  const std::vector<std::string> all = {"memory.activation_offload=true", "memory.optimizer_offload=true",
                                        "memory.weight_offload=true"};
  for (const bool begins_offloaded : {false, true}) {
    const Recipe without = resident(on, cat("resumed_offload_", begins_offloaded));
    const Recipe with = override_recipe(without, all);
    testing::fit(override_recipe(begins_offloaded ? with : without, {"train.steps=2"}), the_world);
    const Recipe& second = begins_offloaded ? without : with;
    const train::FitResult result = testing::fit(second, the_world, true);
    const RunOutcome resumed = outcome(second, result);
    EXPECT_EQ(resumed.losses, expected.losses);
    EXPECT_TRUE(testing::same_bits(resumed.last, expected.last));
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OffloadedRecipe);

}  // namespace offload_recipe_test
}  // namespace hawser
