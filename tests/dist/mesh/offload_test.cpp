// Saved tensors that are in host memory between forward and backward: not a bit of the training differs.
#include "support/pipeline.h"
#include "toy_training.h"

namespace hawser {
namespace offload_test {

TEST(Offload, ChangesNothing) {
  const int world = the_world->size();
  const models::Model model(testing::toy_description());
  const nn::SavePolicy none, full{.checkpointing = Checkpointing::full},
      delayed{.checkpointing = Checkpointing::projections, .delay_weight_gradients = true};
  for (const nn::SavePolicy& policy : {none, full, delayed}) {
    plan::LayoutChoices layout =
        testing::toy_layout({.context = std::min(world, 2), .shard = std::max(world / 2, 1)}, model);
    if (policy.delay_weight_gradients) layout.schedule.group = 2;
    layout.policies.assign(static_cast<std::size_t>(model.layers()), policy);
    const testing::Trained kept = testing::train(model, layout);
    for (nn::SavePolicy& of_layer : layout.policies) of_layer.offload = true;
    for (const int ahead : {0, 1, model.layers()}) {
      layout.offload_window = ahead;
      std::int64_t host_bytes = 0;
      const testing::Trained offloaded = testing::train(model, layout, {.look = [&](engine::Session& session) {
                                                          host_bytes = session.plan(step::Purpose::train).host_bytes();
                                                        }});
      const std::string text = cat("checkpointing ", static_cast<int>(policy.checkpointing), ", ahead ", ahead);
      EXPECT_TRUE(offloaded.after == kept.after) << text;
      EXPECT_EQ(offloaded.losses, kept.losses) << text;
      EXPECT_GT(host_bytes, 0) << text;
    }
  }
}

// On some layers of pipeline stages.
TEST(Offload, OfStagesChangesNothing) {
  const int world = the_world->size();
  if (world == 1) GTEST_SKIP() << "needs two ranks or more";
  const models::Model model(testing::toy_description());
  plan::LayoutChoices layout = testing::toy_layout({.shard = world / 2}, model);
  layout.partition = {.stages = 2, .ends = {1, 2}};
  layout.schedule.passes = testing::one_forward_one_backward_of(2);
  const testing::Trained kept = testing::train(model, layout, {.micro_batches = 3});
  for (std::size_t layer = 0; layer < layout.policies.size(); layer += 2) layout.policies[layer].offload = true;
  const testing::Trained offloaded = testing::train(model, layout, {.micro_batches = 3});
  EXPECT_TRUE(offloaded.after == kept.after);
}

}  // namespace offload_test
}  // namespace hawser
