// A bound of the rows that a rank of experts receives: steps and evaluations beyond it run again in a larger plan.
#include "experts_case.h"

namespace hawser {
namespace expert_rows_test {

using testing::MeshCase;

// Steps with a bound of the rows of experts.
class BoundedSteps {
 public:
  static constexpr std::int64_t kSequences = 6;  // of a rank

  explicit BoundedSteps(std::optional<double> bound, std::optional<double> fallback = {},
                        const ops::LossScaling& scaling = {})
      : case_{.mesh = {.shard = the_world->size(), .expert = the_world->size()},
              .policy = {.checkpointing = Checkpointing::selective},
              .row_bound = bound,
              .row_fallback = fallback},
        model_(part_of(description(), case_)),
        mesh_(rank_mesh(case_.mesh)),
        layout_(layout(scaling)),
        steps_(*model_, layout_, mesh_->coordinate(), kSequences * the_world->size()),
        device_(rank_device({.random_delay_s = 2e-4, .delay_seed = 5})),
        session_(*model_, plan::derive(layout_, *model_), *device_, *mesh_, {step::Purpose::train, step::Purpose::loss},
                 std::nullopt, {.replay = true}) {
    session_.initialise(3);
    set_router(true);
  }

  engine::Session& session() { return session_; }
  // Equal logits choose the first expert.
  void set_router(bool skewed) {
    testing::set_weights(session_, *model_, [&](const std::string& name, std::int64_t element) {
      if (!name.ends_with("block_sparse_moe.gate.weight")) return NAN;
      return skewed ? 0.0f : static_cast<float>((element / 24 * 7 + element % 24 * 13) % 11 - 5) / 20;
    });
  }
  step::StepInput input(std::int64_t step) const {
    step::StepInput input = steps_.input(step);
    input.record.learning_rate = 0.01f;
    return input;
  }

 private:
  static models::ModelDescription description() {
    models::ModelDescription whole = testing::toy_with_experts(the_world->size(), 1);
    for (models::BlockDescription& block : whole.blocks) block.moe->normalise_top_k = false;
    return whole;
  }
  plan::LayoutChoices layout(const ops::LossScaling& scaling) const {
    plan::LayoutChoices layout = toy_layout(case_, *model_);
    layout.loss_scaling = scaling;
    layout.batch_sizes.sequences = kSequences;
    return layout;
  }

  MeshCase case_;
  std::unique_ptr<models::Model> model_;
  std::shared_ptr<comm::Mesh> mesh_;
  plan::LayoutChoices layout_;
  testing::ToySteps steps_;
  std::shared_ptr<Device> device_;
  engine::Session session_;
};

// What two steps in flight do, of which the host repeats those that are refused, before those after them.
struct Steps {
  std::vector<double> losses;
  std::vector<step::Skip> skips;   // of the steps that are not repeated: none or an overflow
  std::vector<float> loss_scales;  // after them
  int refused = 0, waited = 0;
  step::OptimizerProgress progress;
};

Steps take(BoundedSteps& of, std::int64_t count) {
  Steps out;
  engine::Session& session = of.session();
  for (std::int64_t next = 0; next < count;) {
    std::vector<step::StepOutput> in_flight;
    for (std::int64_t step = next; step < std::min(next + 2, count); ++step) {
      in_flight.push_back(session.enqueue(step::Purpose::train, of.input(step)));
    }
    session.synchronize();
    for (step::StepOutput& output : in_flight) {
      if (output.result->skipped() == step::Skip::replay) {
        ++out.waited;
        break;
      }
      if (output.result->skipped() == step::Skip::refused) {
        ++out.refused;
        EXPECT_EQ(output.result->refused(), nn::Refusal::expert_rows);
        EXPECT_TRUE(std::isfinite(output.result->loss_sum.value()));
        EXPECT_EQ(output.progress->step, out.progress.step);
        EXPECT_EQ(output.progress->replay_step, next);
        output = session.enqueue_refused(step::Purpose::train, of.input(next));
        session.synchronize();
      }
      out.skips.push_back(output.result->skipped());
      out.loss_scales.push_back(output.progress->loss_scale);
      out.losses.push_back(output.result->loss_sum.value());
      out.progress = *output.progress;
      ++next;
    }
  }
  return out;
}

// All ranks refuse a step in which one has too many rows, and repeat it in a larger plan: no row is lost.
TEST(ExpertRanks, StepsWithMoreRowsThanTheBoundRunAgain) {
  if (the_world->size() == 1) GTEST_SKIP() << "needs several ranks";
  BoundedSteps bounded(1.3), unbounded(std::nullopt);
  const std::int64_t count = 4;
  const Steps got = take(bounded, count), expected = take(unbounded, count);
  EXPECT_GT(got.refused, 0);
  EXPECT_GT(got.waited, 0);
  EXPECT_EQ(expected.refused, 0);
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(got.skips, std::vector<step::Skip>(count, step::Skip::none));
  EXPECT_EQ(got.progress.step, count);
  EXPECT_EQ(got.progress.replay_step, -1);
  EXPECT_TRUE(testing::assembled(bounded.session()) == testing::assembled(unbounded.session()));
  BoundedSteps balanced(1.3);
  balanced.set_router(false);
  EXPECT_EQ(take(balanced, 1).refused, 0);
}

// The gradients of a step that is refused, or that waits for one, are of no use: an overflow of them does not change
// the loss scale. The step that runs again has the scale, and counts, as in a run without a bound.
TEST(ExpertRanks, ARefusedStepDoesNotChangeTheLossScale) {
  if (the_world->size() == 1 || the_world->size() > 4) GTEST_SKIP() << "mesh_2 and mesh_4 run it";
  // Squares of gradients overflow from a scale of about 2^64 on.
  const ops::LossScaling scaling{.growth_interval = 2, .initial = 0x1p66};
  BoundedSteps bounded(1.3, std::nullopt, scaling), unbounded(std::nullopt, std::nullopt, scaling);
  const Steps got = take(bounded, 8), expected = take(unbounded, 8);
  EXPECT_GT(got.refused, 0);
  EXPECT_GT(got.waited, 0);
  EXPECT_GE(std::ranges::count(expected.skips, step::Skip::overflow), 3);
  EXPECT_GE(std::ranges::count(expected.skips, step::Skip::none), 3);
  EXPECT_EQ(got.skips, expected.skips);
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(got.loss_scales, expected.loss_scales);
  EXPECT_EQ(std::memcmp(&got.progress, &expected.progress, sizeof(got.progress)), 0);
  EXPECT_TRUE(testing::assembled(bounded.session()) == testing::assembled(unbounded.session()));
}

TEST(ExpertRanks, EvaluationsWithMoreRowsThanTheBoundRunAgain) {
  if (the_world->size() == 1) GTEST_SKIP() << "needs several ranks";
  BoundedSteps bounded(1.3), unbounded(std::nullopt), too_small(1.3, 1.3);
  const auto loss = [](BoundedSteps& of) {
    return of.session().run(step::Purpose::loss, of.input(0)).result->loss_sum.value();
  };
  EXPECT_EQ(loss(bounded), loss(unbounded));
  std::string message;
  try {
    loss(too_small);
  } catch (const Error& error) {
    message = error.what();
  }
  EXPECT_EQ(message, "more rows for a rank's experts than their bound (expert_row_fallback 1.3); raise it");
  too_small.set_router(false);
  EXPECT_TRUE(std::isfinite(loss(too_small)));
}

}  // namespace expert_rows_test
}  // namespace hawser
