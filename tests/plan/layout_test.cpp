#include "plan/layout.h"

#include <gtest/gtest.h>

#include "engine/model_changes.h"
#include "support/toy.h"

namespace hawser {
namespace layout_test {

using plan::CachedPass;
using plan::Layout;
using plan::LayoutChoices;
using plan::Schedule;

// The example of the header.
TEST(Layout, FollowsFromARecipe) {
  const models::Model model(testing::toy_description());
  Recipe recipe;
  recipe.data.pack = Packing::chunks;
  recipe.data.sequence_length = 4096;
  recipe.train.global_batch_size = 2;
  recipe.parallel.context_parallel_degree = 2;
  LayoutChoices choices = plan::layout_choices(recipe, model, 2, DType::bf16, 1, DeviceKind::cuda);
  EXPECT_EQ(choices.mesh.context, 2);
  EXPECT_EQ(choices.batch_sizes.sequences, 1);
  EXPECT_EQ(choices.batch_sizes.chunks_per_rank, 2);
  EXPECT_EQ(choices.micro_batches, 2);
  choices.policies[0].checkpointing = Checkpointing::full;
  const Layout layout = derive(choices, model);
  EXPECT_EQ(layout.bounds.rows, 2048);
  ASSERT_EQ(layout.batch.masks.size(), 1u);
  EXPECT_TRUE(layout.batch.masks.front().mask.causal);
  EXPECT_EQ(layout.policies[0].checkpointing, Checkpointing::full);
}

// W of q, and of k and v, would be two parameters with a scale each.
TEST(Layout, Fp8WithCopiesOfKeyValueHeadsIsRejected) {
  const auto rejection = [](int ranks, const std::vector<std::string>& exclude) -> std::string {
    Recipe recipe;
    recipe.data.sequence_length = 64;
    recipe.train.global_batch_size = 1;
    recipe.parallel.tensor_parallel_degree = ranks;
    recipe.precision.compute = ComputePrecision::fp8;
    recipe.precision.fp8.exclude = exclude;
    const engine::ModelChanges changes = engine::changes_of(recipe);
    const models::Model model(testing::llama_description({}), changes.spec_of, changes.share);  // 2 key-value heads
    try {
      plan::make_layout(recipe, model, ranks, DType::f32, 1);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(rejection(2, {}), "");
  EXPECT_EQ(rejection(4, {"q_proj", "k_proj", "v_proj"}), "");
  const std::string line = rejection(4, {});
  EXPECT_NE(line.find("FP8 with more tensor ranks than key-value heads is not supported (expected at most 2, got 4) at "
                      "parallel.tensor_parallel_degree; try parallel.tensor_parallel_degree: 2, or "
                      "precision.fp8.exclude: [q_proj, k_proj, v_proj]"),
            std::string::npos)
      << line;
}

// A GPU's loss has a limit that the CPU's has not; a slice of the vocabulary has none.
TEST(Layout, ALargerVocabularyThanAGpuCanHaveIsRejected) {
  const auto rejection = [](std::int64_t vocabulary, std::int64_t total, DeviceKind device) -> std::string {
    models::ModelDescription description = testing::toy_description();
    description.embedding.vocabulary = description.head.vocabulary = vocabulary;
    description.embedding.vocabulary_slice.total = description.head.vocabulary_slice.total = total;
    Recipe recipe;
    recipe.model.path = "model";
    try {
      plan::check_loss(recipe, models::Model(description), device);
      plan::make_layout(recipe, models::Model(description), 1, DType::bf16, 1, device);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(rejection(442'368, 0, DeviceKind::cuda), "");
  EXPECT_EQ(rejection(442'369, 0, DeviceKind::cpu), "");
  EXPECT_EQ(rejection(442'369, 884'738, DeviceKind::cuda), "");
  const std::string line = rejection(442'369, 0, DeviceKind::cuda);
  EXPECT_NE(
      line.find("the vocabulary is too large for the loss on a GPU (expected at most 442368 tokens, got 442369) at "
                "model.path; try run.device: cpu"),
      std::string::npos)
      << line;
}

// Padding for FP8 on a GPU, and equal rows of tensor ranks.
TEST(Layout, ChoicesHaveNoOrder) {
  const models::Model model(testing::toy_description(),
                            nn::with_fp8_weights(nn::common_domain, [](int) { return true; }));
  LayoutChoices choices, reversed;
  set_formats(choices, model, {});
  choices.device = DeviceKind::cuda;
  choices.mesh.tensor = 2;
  choices.sequence_parallel = true;
  choices.batch_sizes = {.sequences = 1, .sequence_length = 61};
  reversed.batch_sizes = {.sequences = 1, .sequence_length = 61};
  reversed.sequence_parallel = true;
  reversed.mesh.tensor = 2;
  reversed.device = DeviceKind::cuda;
  set_formats(reversed, model, {});
  for (const LayoutChoices& of : {choices, reversed, static_cast<LayoutChoices>(derive(choices, model))}) {
    const Layout layout = derive(of, model);
    EXPECT_EQ(layout.batch.row_multiple, 2 * 16);
    EXPECT_EQ(layout.bounds.rows, 64);
    EXPECT_EQ(layout.bounds.row_parts, 2);
    EXPECT_EQ(layout.policies.front().format(nn::Site::qkv_projection), LinearFormat::fp8_delayed);
  }
}

TEST(Layout, StagesOfTheMeshFollowFromThePartition) {
  const models::Model model(testing::toy_description());  // embedding and head are one tensor
  LayoutChoices choices;
  EXPECT_EQ(derive(choices, model).mesh.pipeline, 1);
  EXPECT_TRUE(derive(choices, model).mesh.tied.empty());
  choices.partition = {.stages = 2, .ends = {1, 2}};
  Layout layout = derive(choices, model);
  EXPECT_EQ(layout.mesh.pipeline, 2);
  EXPECT_FALSE(layout.mesh.interleaved);
  EXPECT_EQ(layout.mesh.tied, (std::vector<std::vector<int>>{{0, 1}}));
  choices.partition.ends = {0, 1, 2, 2};
  EXPECT_TRUE(derive(choices, model).mesh.interleaved);
}

TEST(Layout, APassOfGenerationIsBoundedByTheCache) {
  const models::Model model(testing::toy_description());
  LayoutChoices choices;
  choices.batch_sizes.sequence_length = 8;
  EXPECT_EQ(logit_rows(derive(choices, model)), 1);
  choices.cached = CachedPass{.rows = 8, .sequences = 2, .cache_rows = 200, .positions = 100};
  const Layout layout = derive(choices, model);
  EXPECT_EQ(layout.bounds.rows, 8);
  EXPECT_EQ(layout.bounds.diagonal, 2);
  EXPECT_EQ(layout.bounds.masks.front().diagonal_pairs, 800);
  EXPECT_EQ(logit_rows(layout), 2);
}

TEST(Schedule, GroupsMicroBatchesUnlessItHasPasses) {
  using enum step::Pass::Kind;
  Schedule schedule{.group = 2};
  EXPECT_EQ(schedule.in_flight(1, 3), 2);
  EXPECT_EQ(schedule.in_flight(1, 1), 1);
  const std::vector<step::Pass> of_two = {{forward, 0}, {forward, 1}, {backward, 0}, {backward, 1}};
  std::vector<step::Pass> passes = schedule.of_stage({}, 0, 2);
  std::erase_if(passes, [](const step::Pass& pass) { return pass.kind == weight_gradients; });
  EXPECT_EQ(passes, of_two);
  schedule.passes = [](int, int) { return std::vector<step::Pass>{{forward, 0}, {backward, 0}}; };
  EXPECT_EQ(schedule.of_stage({}, 0, 1).size(), 2u);
  EXPECT_EQ(schedule.in_flight(1, 1), 1);
}

}  // namespace layout_test
}  // namespace hawser
