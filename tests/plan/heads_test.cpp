// Plans of models that predict masked tokens and classes: steps match them item by item, and memory and FLOPs count
// what these heads have.
#include <gtest/gtest.h>

#include "plan/plan.h"
#include "support.h"
#include "support/toy_heads.h"

namespace hawser {
namespace heads_test {

using testing::Head;
using testing::LayoutOptions;

TEST(HeadPlans, StepsMatchThem) {
  for (const Head head : testing::kHeads) {
    const models::Model model(testing::toy_with(head));
    for (const int micro_batches : {1, 2}) {
      const LayoutOptions options{.length = 61,
                                  .sequences = 2,
                                  .checkpointing = micro_batches > 1 ? Checkpointing::full : Checkpointing::none,
                                  .micro_batches = micro_batches,
                                  .in_flight = micro_batches};
      const plan::LayoutChoices layout = testing::make_test_layout(options, model);
      const auto mesh = comm::make_self_mesh();
      const auto device = make_cpu_device();
      const auto run = [&](engine::SessionChecks checks) {
        engine::Session session(model, plan::derive(layout, model), *device, *mesh,
                                {step::Purpose::train, step::Purpose::loss}, std::nullopt, checks);
        testing::Steps steps(session);
        std::vector<double> losses;
        for (const auto purpose : {step::Purpose::train, step::Purpose::loss}) losses.push_back(steps.run(purpose));
        return losses;
      };
      // With the guard, a read outside of a buffer's lifetime gives NaN or ends the process.
      EXPECT_EQ(run({.replay = true, .guard = true}), run({.replay = false, .guard = false})) << testing::text_of(head);
    }
  }
}

plan::Costs costs_of(const models::ModelDescription& description) {
  const models::Model model(description);
  const plan::LayoutChoices layout = testing::make_test_layout({.length = 64, .sequences = 2}, model);
  return plan::costs_of(plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0), model,
                        plan::derive(layout, model));
}

TEST(HeadPlans, CountClassesAndThePooler) {
  models::ModelDescription d = testing::toy_with(Head::first_rows);
  d.head.classes = 100;
  const plan::Costs few = costs_of(d);
  d.head.classes = 1100;
  const plan::Costs many = costs_of(d);
  d.head.transform.reset();
  const plan::Costs without = costs_of(d);
  const auto width = static_cast<double>(d.head.width);
  // Forward and two gradients of 128 rows; the ops of the loss have FLOPs of their own, too.
  const double of_classes = 3.0 * 2 * 128 * width * 1000, of_pooler = 3.0 * 2 * 128 * width * width;
  EXPECT_EQ(many.model_flops - few.model_flops, of_classes);
  EXPECT_EQ(many.model_flops - without.model_flops, of_pooler);
  EXPECT_GE(many.flops - few.flops, of_classes);
  EXPECT_LT(many.flops - few.flops, 1.3 * of_classes);
  EXPECT_GE(many.flops - without.flops, of_pooler);
  // Weight, bias, their moments and gradients in float32.
  EXPECT_GE(many.total_bytes - few.total_bytes, 4 * 4 * 1000 * (d.head.width + 1));
  EXPECT_GT(many.total_bytes, without.total_bytes);
}

}  // namespace heads_test
}  // namespace hawser
