// Pipeline stages, with schedules for tests: the same loss, gradients and training as one rank.
#include <set>

#include "engine/evaluate_loss.h"
#include "outcome.h"
#include "toy_training.h"

namespace hawser {
namespace pipeline_test {

using models::PipelinePartition;
using testing::CaseName;
using testing::CaseTest;
using testing::MeshCase;
using testing::Schedule;
using testing::toy_layout;

// One rank with the same policy.
MeshCase case_of_one_rank(const MeshCase& c) {
  return {.policy = c.policy, .accumulation = c.accumulation};
}

// Runs of blocks of about equal length, as many as there are ranks; two model chunks of four and more have no block.
PipelinePartition over(int stages) {
  switch (stages) {
    case 2:
      return {.stages = 2, .ends = {3, 5}};
    case 4:
      return {.stages = 4, .ends = {1, 3, 5, 5}};  // a stage with only the head
    default:
      return {.stages = 8, .ends = {0, 1, 2, 3, 3, 4, 5, 5}};
  }
}

using Pipeline = CaseTest<MeshCase>;

TEST_P(Pipeline, TrainsLikeOneRank) {
  const MeshCase& c = GetParam();
  const models::Model model(testing::toy_description(c.tied, 5));
  const testing::Trained trained = testing::train(model, toy_layout(c, model), {.micro_batches = c.micro_batches});
  testing::expect_training_of_one_rank(model, toy_layout(case_of_one_rank(c), model), c.batch_size(), trained);
}

std::vector<MeshCase> stages() {
  std::vector<MeshCase> out;
  const int world = the_world->size();
  const nn::SavePolicy full{.checkpointing = Checkpointing::full},
      delayed{.checkpointing = Checkpointing::projections, .delay_weight_gradients = true};
  for (int stages = 2; stages <= world; stages *= 2) {
    const int others = world / stages;
    const comm::MeshSizes shards{.shard = others}, mixed{.context = std::min(others, 2), .shard = (others + 1) / 2},
        copies{.replicate = others};
    const PipelinePartition even = over(stages);
    using enum Schedule;
    out.push_back({.mesh = shards, .partition = even, .schedule = one_forward_one_backward, .micro_batches = 2});
    out.push_back({.mesh = mixed, .partition = even, .schedule = zero_bubble, .policy = delayed, .micro_batches = 2});
    out.push_back({.mesh = copies,
                   .partition = even,
                   .schedule = one_forward_one_backward,
                   .policy = full,
                   .micro_batches = stages + 1,
                   .accumulation = GradientAccumulation::local,
                   .tied = false});
    out.push_back({.mesh = shards, .partition = even, .tied = false});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Stages, Pipeline, ::testing::ValuesIn(stages()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Pipeline);  // one rank has no stages

std::vector<MeshCase> virtual_stages() {
  const int world = the_world->size();
  if (world == 1) return {};
  const PipelinePartition partition{.stages = 2, .ends = {1, 3, 4, 5}};
  std::vector<MeshCase> out{{.mesh = {.shard = world / 2},
                             .partition = partition,
                             .policy = {.delay_weight_gradients = true},
                             .micro_batches = 2,
                             .in_flight = 2}};
  for (const int micro_batches : {2, 4}) {
    out.push_back({.mesh = {.shard = world / 2},
                   .partition = partition,
                   .schedule = Schedule::interleaved,
                   .policy = {.checkpointing = Checkpointing::full},
                   .micro_batches = micro_batches});
  }
  if (world < 4) return out;
  out.push_back({.mesh = {.shard = world / 4},
                 .partition = {.stages = 4, .ends = {0, 1, 2, 3, 3, 4, 5, 5}},
                 .schedule = Schedule::interleaved,
                 .micro_batches = 8,
                 .tied = false});
  return out;
}
INSTANTIATE_TEST_SUITE_P(VirtualStages, Pipeline, ::testing::ValuesIn(virtual_stages()), CaseName());

using PipelineGradients = CaseTest<MeshCase>;

// Stages change where a layer runs, not what it computes: without sums over ranks, not a bit differs.
TEST_P(PipelineGradients, HaveTheBitsOfOneRank) {
  const MeshCase& c = GetParam();
  const models::Model model(testing::toy_description(c.tied, 5));
  const plan::LayoutChoices layout = toy_layout(c, model);
  MeshCase of_one = case_of_one_rank(c);
  of_one.micro_batches = c.micro_batches;
  const auto mesh = rank_mesh(plan::derive(layout, model).mesh);
  const testing::Outcome ours = testing::run(model, layout, *mesh, c.batch_size(), 2e-4);
  const testing::Outcome one = testing::on_one_rank(
      [&] { return testing::run(model, toy_layout(of_one, model), *comm::make_self_mesh(), c.batch_size(), 0); });
  EXPECT_EQ(ours.loss, one.loss);
  EXPECT_EQ(ours.gradients.empty(), the_world->size() == 8 && the_world->rank() == Rank(4))
      << "only model chunk 4 has no block";
  for (const auto& [name, gradient] : ours.gradients) {
    EXPECT_TRUE(testing::same_bits(gradient, one.gradients.at(name))) << name;
  }
}

std::vector<MeshCase> without_sums() {
  std::vector<MeshCase> out;
  const int world = the_world->size();
  if (world == 1) return out;
  for (const int micro_batches : std::set{1, world - 1, world, 3 * world + 1}) {
    out.push_back({.partition = over(world),
                   .schedule = Schedule::one_forward_one_backward,
                   .micro_batches = micro_batches,
                   .accumulation = GradientAccumulation::local,
                   .tied = false});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Stages, PipelineGradients, ::testing::ValuesIn(without_sums()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PipelineGradients);

using PipelineEvaluation = CaseTest<MeshCase>;

// Several micro-batches of each step are in the stages at the same time. Five in steps of three: one has no tokens.
TEST_P(PipelineEvaluation, HasTheLossOfOneRank) {
  const MeshCase& c = GetParam();
  const models::Model model(testing::toy_with_experts());
  const auto loss_of = [&](plan::LayoutChoices layout, comm::Mesh& mesh) {
    const testing::ToySteps steps(model, layout, mesh.coordinate(), c.batch_size());
    const auto device = rank_device({.random_delay_s = 2e-4, .delay_seed = 5});
    engine::Session session(model, plan::derive(layout, model), *device, mesh, {step::Purpose::loss}, std::nullopt,
                            {.replay = true});
    session.initialise(3);
    std::vector<double> statistics;
    const auto [sum, tokens] = engine::evaluate_loss(session, steps.loader(), 2, nullptr, &statistics);
    EXPECT_EQ(tokens, steps.targets(0) + steps.targets(1));
    return std::pair(sum, statistics);
  };
  plan::LayoutChoices layout = toy_layout(c, model);
  layout.forward_micro_batches = 3;
  const auto mesh = rank_mesh(plan::derive(layout, model).mesh);
  const auto [loss, statistics] = loss_of(layout, *mesh);
  const auto [loss_of_one, statistics_of_one] =
      testing::on_one_rank([&] { return loss_of(toy_layout(case_of_one_rank(c), model), *comm::make_self_mesh()); });
  EXPECT_NEAR(loss, loss_of_one, 1e-6 * loss_of_one);
  ASSERT_EQ(statistics.size(), statistics_of_one.size());
  for (std::size_t i = 0; i < statistics.size(); ++i) {
    EXPECT_NEAR(statistics[i], statistics_of_one[i], 1e-5 * (1 + std::abs(statistics_of_one[i]))) << i;
  }
}

std::vector<MeshCase> two_stages() {
  if (the_world->size() == 1) return {};
  std::vector<MeshCase> out(
      2,
      {.mesh = {.shard = the_world->size() / 2}, .schedule = Schedule::one_forward_one_backward, .micro_batches = 5});
  out[0].partition = {.stages = 2, .ends = {1, 2}};
  out[1].partition = {.stages = 2, .ends = {0, 1, 2, 2}};
  return out;
}
INSTANTIATE_TEST_SUITE_P(Stages, PipelineEvaluation, ::testing::ValuesIn(two_stages()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PipelineEvaluation);

}  // namespace pipeline_test
}  // namespace hawser
