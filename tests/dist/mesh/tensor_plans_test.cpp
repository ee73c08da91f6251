// What a plan counts of layers on tensor ranks and with adapters, and the random numbers of adapters.
#include "tensor_case.h"

namespace hawser {
namespace tensor_plans_test {

using testing::Division;
using testing::kSequence;
using testing::kVocabulary;
using testing::part_of;
using testing::train;
using testing::Trained;

// With sequence parallelism a complete MLP has as many FLOPs as a slice, on fewer rows; without it, as on one rank. Its
// weights are sharded over the tensor ranks, and complete where they are gathered.
TEST(TensorPlans, PlansCountWhatARankHasOfALayer) {
  models::ModelDescription whole = testing::divisible(testing::toy_description());
  const auto plan_of = [&](const comm::MeshSizes& mesh, const Division& division) {
    const nn::FlatSpecOf own(testing::own_spec);
    const models::Model model(mesh.tensor == 1 ? whole : part_of(whole, 0, mesh.tensor, division),
                              division.sequence_parallel ? nn::with_sequence_parallelism(own) : own);
    const plan::LayoutChoices layout = testing::toy_layout({.mesh = mesh, .division = division}, model);
    const plan::RankPlan plan = plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0);
    return std::pair(plan::costs_of(plan, model, plan::derive(layout, model)), plan.parameter_bytes);
  };
  const auto with_whole_mlp = [](Division division) {
    division.whole_mlp = 1;
    return division;
  };
  const auto [sliced, sliced_bytes] = plan_of({.tensor = 2}, kSequence);
  const auto [complete, bytes] = plan_of({.tensor = 2}, with_whole_mlp(kSequence));
  EXPECT_DOUBLE_EQ(complete.model_flops, sliced.model_flops);
  EXPECT_NEAR(complete.flops, sliced.flops, 1e-3 * sliced.flops);
  EXPECT_NEAR(static_cast<double>(bytes), static_cast<double>(sliced_bytes), 1024);  // padding
  EXPECT_GT(complete.total_bytes, sliced.total_bytes);
  const auto all_rows = [&](const Division& division) { return plan_of({.tensor = 2}, division).first.model_flops; };
  const double one = plan_of({}, {}).first.model_flops, half = all_rows(kVocabulary),
               with_mlp = all_rows(with_whole_mlp(kVocabulary));
  const nn::MlpConfig& mlp = whole.blocks[1].mlp;
  const models::Model all(whole);
  const double rows = static_cast<double>(plan::derive(testing::toy_layout({}, all), all).bounds.rows);
  EXPECT_NEAR(with_mlp - half, 3 * 2 * rows * static_cast<double>(mlp.width * 3 * mlp.inner) / 2, 1e-6 * one);
}

// The bytes that a plan saves for backward, in all micro-batches: with a frozen base less than with everything
// trainable, by what only frozen weights' gradients read, and the executor runs in that plan.
TEST(TensorPlans, AFrozenBaseSavesLess) {
  models::ModelDescription d = testing::toy_description();
  for (models::BlockDescription& block : d.blocks) block.attention.adapters = {{block.attention.q, 3, 2.0}};
  const auto saved_bytes = [&](const models::Model& model) {
    plan::LayoutChoices layout = testing::toy_layout({}, model);
    const plan::RankPlan plan = plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0);
    std::int64_t bytes = 0;
    for (const auto& [key, index] : plan.buffers.index) {
      if (key.role == step::Role::saved) bytes += plan.buffers.buffers[static_cast<std::size_t>(index)].bytes;
    }
    return bytes;
  };
  const models::Model all(d), frozen(d, [](const nn::Param&param) {
    nn::FlatSpec own = nn::common_domain(param);
    own.trainable = testing::is_adapter(param.name);
    return own;
  });
  const plan::Layout layout = plan::derive(testing::toy_layout({}, all), all);
  std::int64_t less = 0;
  for (const models::BlockDescription& block : d.blocks) {  // float32: the MLP's normed rows and inner activations
    for (const std::int64_t columns : {block.mlp.width, block.mlp.inner}) {
      less += layout.bounds.rows * columns * 4;
    }
  }
  std::printf("saved bytes: %lld, with a frozen base %lld\n", static_cast<long long>(saved_bytes(all)),
              static_cast<long long>(saved_bytes(frozen)));
  EXPECT_EQ(saved_bytes(all) - saved_bytes(frozen), less);
  EXPECT_GT(saved_bytes(frozen), 0);
}

// What the mesh test compares would differ with other random numbers.
TEST(TensorPlans, DropoutFollowsTheSeed) {
  const models::Model model(testing::toy_with_adapters(0.25)), none(testing::toy_with_adapters(0));
  plan::LayoutChoices layout = testing::toy_layout({.mesh = {.shard = the_world->size()}}, model);
  const Trained first = train(model, layout), again = train(model, layout), without = train(none, layout);
  layout.seed = 1;
  const Trained other = train(model, layout);
  EXPECT_TRUE(first.after == again.after);
  EXPECT_GT(testing::difference(other.after, first.after), 1e-4);
  EXPECT_GT(testing::difference(without.after, first.after), 1e-4);
}

}  // namespace tensor_plans_test
}  // namespace hawser
