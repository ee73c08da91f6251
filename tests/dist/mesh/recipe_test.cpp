// Recipes with tensor, context (each form of its exchange), pipeline (each schedule) and data parallelism train like
// one rank: losses, the gradient of every tensor, norms, trained weights and the validation loss. Each mesh meets each
// model, and each feature meets each mesh and each model.
#include "recipe_case.h"

namespace hawser {
namespace recipe_test {

using testing::CaseName;
using testing::CaseTest;
using testing::Feature;
using testing::RecipeCase;
using testing::RecipeMesh;
using testing::RecipeModel;
using testing::RunOutcome;
using testing::Tensors;

constexpr std::array kModels = {RecipeModel::dense_tied, RecipeModel::fused_qkv, RecipeModel::windows,
                                RecipeModel::experts};

Recipe with_keys(const Recipe& recipe, const std::vector<std::string>& keys) {
  return override_recipe(recipe, keys);
}

RunOutcome on_mesh(const RecipeCase& c) {
  const Recipe recipe = with_keys(recipe_of(c, "mesh_" + c.name()), c.mesh.keys);
  const train::FitResult result = testing::fit(recipe, the_world);
  return testing::on_one_rank([&] { return testing::outcome_of(recipe.output, result); });
}

// The reference of the cases that differ in their mesh only, but have micro-batches of the same sequences.
const RunOutcome& of_one_rank(RecipeCase c) {
  static std::map<std::string, RunOutcome> references;
  c.mesh = {.name = cat(c.mesh.data_ranks, "_sequences", c.mesh.blocks > 0 ? cat("_", c.mesh.blocks, "_blocks") : ""),
            .keys = {},
            .data_ranks = c.mesh.data_ranks,
            .blocks = c.mesh.blocks};
  const std::string name = "one_" + c.name();
  auto [found, is_new] = references.try_emplace(name);
  if (is_new) {
    const Recipe recipe = on_one(recipe_of(c, ""), c, name);
    found->second =
        testing::on_one_rank([&] { return testing::outcome_of(recipe.output, testing::fit(recipe, nullptr)); });
  }
  return found->second;
}

double norm_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  return std::sqrt(sum);
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (std::size_t i = 0; i < b.size(); ++i) sum += std::pow(double{a.at(i)} - b[i], 2);
  return std::sqrt(sum);
}

constexpr const char* kGradient = "optimizer/exp_avg/";  // of the first step: a tenth of the clipped gradient

double norm_of_gradients(const Tensors& first) {
  double sum = 0;
  for (const auto& [name, values] : first) {
    if (name.starts_with(kGradient)) sum += std::pow(norm_of(values), 2);
  }
  return std::sqrt(sum);
}

void expect_like_one_rank(const RunOutcome& mesh, const RunOutcome& one) {
  ASSERT_EQ(mesh.losses.size(), one.losses.size());
  for (std::size_t step = 0; step < one.losses.size(); ++step) {
    EXPECT_NEAR(mesh.losses[step], one.losses[step], 1e-5 * one.losses[step]);
    EXPECT_NEAR(mesh.norms[step], one.norms[step], 1e-5 * one.norms[step]);
  }
  EXPECT_NEAR(mesh.validation, one.validation, 1e-5 * one.validation);
  ASSERT_EQ(mesh.first.size(), one.first.size());
  const double all = norm_of_gradients(one.first);
  EXPECT_GT(all, 0);
  int gradients = 0;
  for (const auto& [name, values] : one.first) {
    if (!name.starts_with(kGradient)) continue;
    ++gradients;
    EXPECT_LT(distance(mesh.first.at(name), values) / std::max(norm_of(values), 1e-3 * all), 1e-5) << name;
  }
  EXPECT_GT(gradients, 4);
  double weights = 0, moved = 0;
  for (const auto& [name, values] : one.last) {
    if (name.find('/') != std::string::npos) continue;  // of the optimizer
    weights += std::pow(norm_of(values), 2);
    moved += std::pow(distance(mesh.last.at(name), values), 2);
  }
  EXPECT_LT(std::sqrt(moved), 1e-5 * std::sqrt(weights));
}

// What a mesh changes of an FP8 run is less than a quarter of what FP8 changes. A value that rounds to the other side
// may route a token to another expert: of models with experts only the first step is compared. Ranks may replay a step
// more or less often than one rank, since the share of saturated values is that of the rank with the most: then later
// losses are close.
void expect_like_one_rank_in_fp8(const RecipeCase& c, const RunOutcome& mesh, const RunOutcome& one) {
  RecipeCase exact = c;
  std::erase_if(exact.features, [](Feature f) { return f == Feature::fp8 || f == Feature::replay; });
  const RunOutcome& f32 = of_one_rank(exact);
  ASSERT_EQ(mesh.losses.size(), one.losses.size());
  const bool replays = c.has(Feature::replay);
  const std::size_t steps = replays || c.model == RecipeModel::experts ? 1 : one.losses.size();
  for (std::size_t step = 0; step < steps; ++step) {
    EXPECT_NEAR(mesh.losses[step], one.losses[step], 1e-3 * one.losses[step]);
  }
  for (std::size_t step = steps; replays && step < one.losses.size(); ++step) {
    EXPECT_NEAR(mesh.losses[step], one.losses[step], 3e-2 * one.losses[step]);
  }
  EXPECT_EQ(mesh.replays > 0, replays);
  EXPECT_EQ(one.replays > 0, replays);
  EXPECT_NE(one.losses[0], f32.losses[0]);
  double from_one = 0, from_exact = 0;
  for (const auto& [name, values] : one.first) {
    if (!name.starts_with(kGradient)) continue;
    from_one += std::pow(distance(mesh.first.at(name), values), 2);
    from_exact += std::pow(distance(f32.first.at(name), values), 2);
  }
  EXPECT_LT(std::sqrt(from_one), 0.25 * std::sqrt(from_exact));
}

// In FP8 also with a first step that is replayed.
void expect_trains_like_one_rank(RecipeCase c) {
  const RunOutcome mesh = on_mesh(c);
  const RunOutcome& one = of_one_rank(c);
  if (!c.has(Feature::fp8)) return expect_like_one_rank(mesh, one);
  expect_like_one_rank_in_fp8(c, mesh, one);
  c.features.push_back(Feature::replay);
  expect_like_one_rank_in_fp8(c, on_mesh(c), of_one_rank(c));
}

using RecipeOnMesh = CaseTest<RecipeCase>;

TEST_P(RecipeOnMesh, TrainsLikeOneRank) {
  expect_trains_like_one_rank(GetParam());
}

const std::string kTensor2 = "parallel.tensor_parallel_degree=2", kTensor4 = "parallel.tensor_parallel_degree=4",
                  kContext2 = "parallel.context_parallel_degree=2", kContext4 = "parallel.context_parallel_degree=4",
                  kRing = "parallel.context_comm=ring", kAllToAll = "parallel.context_comm=all_to_all",
                  kHybrid = "parallel.context_comm=hybrid", kGroups2 = "parallel.context_all_to_all_degree=2",
                  kAuto = "parallel.context_comm=auto", kState = "parallel.sharding=optimizer",
                  kReplicate = "parallel.hybrid_shard_degree=1", kShard2 = "parallel.hybrid_shard_degree=2",
                  kAllRows = "parallel.sequence_parallel=false", kStages2 = "parallel.pipeline_parallel_degree=2",
                  kStages4 = "parallel.pipeline_parallel_degree=4", kGpipe = "parallel.pipeline_schedule=gpipe",
                  kInterleaved = "parallel.pipeline_schedule=interleaved",
                  kZeroBubble = "parallel.pipeline_schedule=zero_bubble";

std::string cuts(const std::string& blocks) {
  return cat("parallel.pipeline_partition=[", blocks, "]");
}

std::vector<RecipeMesh> meshes() {
  switch (the_world->size()) {
    case 2:
      return {{"tensor2", {kTensor2}, 1},
              {"tensor2_all_rows", {kTensor2, kAllRows}, 1},
              {"ring2", {kContext2, kRing}, 1},
              {"all_to_all2", {kContext2, kAllToAll}, 1},
              {"stages2", {kStages2}, 1, 3},
              {"stages2_gpipe", {kStages2, kGpipe, cuts("1, 2")}, 1, 3},
              {"stages2_interleaved", {kStages2, kInterleaved, cuts("1, 1, 0, 1")}, 1, 3},
              {"stages2_zero_bubble", {kStages2, kZeroBubble, cuts("2, 1")}, 1, 3}};
    case 4:
      return {{"tensor2_context2", {kTensor2, kContext2}, 1},
              {"tensor2_shard2", {kTensor2}, 2},
              {"tensor2_replicate2_all_rows", {kTensor2, kReplicate, kAllRows}, 2},
              {"tensor4", {kTensor4}, 1},
              {"tensor2_ring2", {kTensor2, kContext2, kRing}, 1},
              {"tensor2_all_to_all2_all_rows", {kTensor2, kContext2, kAllToAll, kAllRows}, 1},
              {"hybrid4", {kContext4, kHybrid}, 1},
              {"all_to_all4", {kContext4, kAllToAll}, 1},
              {"ring2_replicate2", {kContext2, kRing, kReplicate}, 2},
              {"auto2_shard2", {kContext2, kAuto}, 2},
              {"all_to_all2_shard2_state", {kContext2, kAllToAll, kState}, 2},
              {"stages4", {kStages4, cuts("1, 1, 1, 0")}, 1, 3},
              {"stages4_zero_bubble", {kStages4, kZeroBubble, cuts("1, 0, 1, 1")}, 1, 3},
              {"stages2_tensor2", {kStages2, kTensor2}, 1, 3},
              {"stages2_tensor2_zero_bubble", {kStages2, kTensor2, kZeroBubble}, 1, 3},
              {"stages2_ring2_interleaved", {kStages2, kContext2, kRing, kInterleaved, cuts("3*1, 0")}, 1, 3},
              {"stages2_all_to_all2_gpipe", {kStages2, kContext2, kAllToAll, kGpipe}, 1, 3},
              {"stages2_interleaved_shard2_state", {kStages2, kInterleaved, kState, cuts("0, 3*1")}, 2, 3},
              {"stages2_replicate2", {kStages2, kReplicate}, 2, 3}};
    case 8:
      return {{"tensor2_context2_shard2", {kTensor2, kContext2}, 2},
              {"tensor2_shard2_replicate2", {kTensor2, kShard2}, 4},
              {"tensor2_hybrid4", {kTensor2, kContext4, kHybrid, kGroups2}, 1},
              {"hybrid4_shard2", {kContext4, kHybrid}, 2},
              {"stages4_interleaved_tensor2", {kStages4, kInterleaved, kTensor2, cuts("0, 2*1, 3*0, 1, 0")}, 1, 3},
              {"stages2_tensor2_context2", {kStages2, kTensor2, kContext2}, 1, 3},
              {"stages2_zero_bubble_tensor2_shard2", {kStages2, kZeroBubble, kTensor2}, 2, 3},
              {"stages4_replicate2", {kStages4, kReplicate, cuts("3*1, 0")}, 2, 3}};
    case 16:
      return {{"tensor2_stages2_context2_shard2", {kTensor2, kStages2, kContext2}, 2, 3}};
    default:
      return {};
  }
}

// Those of router losses are for models with experts.
std::vector<std::vector<Feature>> sets_of_features(RecipeModel model) {
  std::vector<std::vector<Feature>> sets{{Feature::packed, Feature::local, Feature::clipping},
                                         {Feature::lora, Feature::block},
                                         {Feature::fp8, Feature::packed, Feature::full},
                                         {Feature::lora, Feature::packed, Feature::local, Feature::clipping}};
  if (model == RecipeModel::experts) {
    for (const std::size_t set : {std::size_t{0}, std::size_t{2}}) sets[set].push_back(Feature::router_losses);
  }
  return sets;
}

std::vector<RecipeCase> covering_array() {
  std::vector<RecipeCase> out;
  const std::vector<RecipeMesh> all = meshes();
  for (std::size_t m = 0; m < all.size(); ++m) {
    for (std::size_t model = 0; model < kModels.size(); ++model) {
      if (the_world->size() != 4 && model % 2 != m % 2) continue;  // four ranks have every model
      const auto sets = sets_of_features(kModels[model]);
      out.push_back({kModels[model], all[m], sets[(m + model) % sets.size()]});
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Covering, RecipeOnMesh, ::testing::ValuesIn(covering_array()), CaseName());

using FullRecipeOnMesh = RecipeOnMesh;

TEST_P(FullRecipeOnMesh, TrainsLikeOneRank) {
  expect_trains_like_one_rank(GetParam());
}

std::vector<RecipeCase> products() {
  std::vector<RecipeCase> out;
  for (const RecipeMesh& mesh : meshes()) {
    for (const RecipeModel model : kModels) {
      for (const auto& features : sets_of_features(model)) {
        const RecipeCase c{model, mesh, features};
        // Of these models the ranks would have copies of key-value heads, which FP8 rejects.
        const bool copies =
            mesh.name == "tensor4" && (model == RecipeModel::dense_tied || model == RecipeModel::windows);
        if (!copies || !c.has(Feature::fp8)) out.push_back(c);
      }
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(FullProducts, FullRecipeOnMesh, ::testing::ValuesIn(products()), CaseName());

// A run that is saved on one mesh and continues on another one.
struct ResumeCase {
  RecipeMesh from, to;
  std::vector<Feature> features;

  std::string name() const { return testing::joined(from.name, "to", to.name, features.empty() ? "" : "lora"); }
  friend void PrintTo(const ResumeCase& c, std::ostream* out) { *out << c.name(); }
};

using ResumedRecipe = CaseTest<ResumeCase>;

TEST_P(ResumedRecipe, TrainsOnLikeOneRank) {
  const auto& [from, to, features] = GetParam();
  RecipeCase c{RecipeModel::dense_tied, from, features};
  c.mesh.data_ranks = 2;
  Recipe first = recipe_of(c, "resumed_" + GetParam().name());
  first.train.micro_batch_size = 1;
  Recipe second = with_keys(first, to.keys);
  first = with_keys(first, from.keys);
  testing::fit(override_recipe(first, {"train.steps=2"}), the_world);
  const train::FitResult result = testing::fit(second, the_world, true);
  const RunOutcome resumed = testing::on_one_rank([&] { return testing::outcome_of(second.output, result); });
  EXPECT_EQ(resumed.losses.size(), 3u);
  expect_like_one_rank(resumed, of_one_rank(c));
  if (from.name != to.name) return;
  // On one mesh no bit differs from a run that had not stopped.
  Recipe whole = first;
  whole.output = testing::shared_folder() + "whole_" + GetParam().name();
  const train::FitResult not_stopped = testing::fit(whole, the_world);
  const RunOutcome expected = testing::on_one_rank([&] { return testing::outcome_of(whole.output, not_stopped); });
  EXPECT_EQ(resumed.losses, expected.losses);
  EXPECT_TRUE(testing::same_bits(resumed.last, expected.last));
}

std::vector<ResumeCase> resumed() {
  std::vector<ResumeCase> out;
  std::vector<RecipeMesh> all = meshes();
  if (all.empty()) return out;
  const int blocks = all.back().blocks;  // enough for the stages of each
  all.push_back({"no_tensor", {}, the_world->size()});
  for (RecipeMesh& mesh : all) mesh.blocks = blocks;
  for (std::size_t m = 0; m < all.size(); ++m) {
    out.push_back(
        {all[m], all[(m + 1) % all.size()], m % 2 == 0 ? std::vector<Feature>() : std::vector{Feature::lora}});
  }
  out.push_back({all[0], all[0], {}});
  return out;
}
INSTANTIATE_TEST_SUITE_P(Meshes, ResumedRecipe, ::testing::ValuesIn(resumed()), CaseName());

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RecipeOnMesh);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FullRecipeOnMesh);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ResumedRecipe);

}  // namespace recipe_test
}  // namespace hawser
