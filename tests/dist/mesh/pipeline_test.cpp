// Pipeline stages, with schedules for tests: the same loss, gradients and training as one rank.
#include <cstring>

#include "engine/evaluate_loss.h"
#include "outcome.h"
#include "support/pipeline.h"
#include "toy_training.h"

namespace hawser {
namespace pipeline_test {

using models::PipelinePartition;

enum class Schedule { grouped, one_forward_one_backward, zero_bubble, interleaved };

struct Staged {
  PipelinePartition partition;
  comm::MeshSizes mesh;  // of a stage
  int micro_batches = 1;
  Schedule schedule = Schedule::one_forward_one_backward;
  nn::SavePolicy policy;
  bool tied = true;
  GradientAccumulation accumulation = GradientAccumulation::sharded;

  std::string text() const {
    std::string out = cat("ends");
    for (const int end : partition.ends) out += cat(" ", end);
    return out + cat(", stages ", partition.stages, ", context ", mesh.context, ", shard ", mesh.shard,
                     ", micro-batches ", micro_batches, ", schedule ", static_cast<int>(schedule), ", checkpointing ",
                     static_cast<int>(policy.checkpointing), policy.delay_weight_gradients ? ", delayed weights" : "",
                     tied ? ", tied" : "");
  }
};

plan::LayoutChoices layout_of(const Staged& c, const models::Model& model) {
  plan::LayoutChoices layout = testing::toy_layout(c.mesh, model);
  layout.micro_batches = c.micro_batches;
  layout.accumulation = c.accumulation;
  layout.policies.assign(static_cast<std::size_t>(model.layers()), c.policy);
  layout.partition = c.partition;
  const int stages = c.partition.stages;
  if (c.schedule == Schedule::grouped) {
    layout.schedule.group = c.micro_batches;
  } else if (c.schedule == Schedule::interleaved) {
    layout.schedule.passes = testing::interleaved_of(stages, c.partition.model_chunks() / stages);
  } else {
    layout.schedule.passes = c.schedule == Schedule::zero_bubble ? testing::zero_bubble_of(stages)
                                                                 : testing::one_forward_one_backward_of(stages);
  }
  return layout;
}

// One rank with the same sequences and micro-batches.
plan::LayoutChoices alone(const Staged& c, const models::Model& model) {
  plan::LayoutChoices layout = testing::toy_layout({}, model);
  layout.accumulation = c.accumulation;
  layout.policies.assign(static_cast<std::size_t>(model.layers()), c.policy);
  return layout;
}

void expect_like_one_rank(const Staged& c) {
  const models::Model model(testing::toy_description(c.tied, 5));
  const plan::LayoutChoices layout = layout_of(c, model);
  const testing::Trained cut = testing::train(model, layout, {.micro_batches = c.micro_batches});
  testing::expect_one_ranks_training(
      model, alone(c, model), layout.batch_sizes.sequences * layout.data_ranks() * c.micro_batches, cut, c.text());
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

TEST(Pipeline, TrainsLikeOneRank) {
  const int world = the_world->size();
  if (world == 1) GTEST_SKIP() << "needs two ranks or more";
  const nn::SavePolicy full{.checkpointing = Checkpointing::full},
      delayed{.checkpointing = Checkpointing::projections, .delay_weight_gradients = true};
  for (int stages = 2; stages <= world; stages *= 2) {
    const int others = world / stages;
    const comm::MeshSizes shards{.shard = others}, mixed{.context = std::min(others, 2), .shard = (others + 1) / 2},
        copies{.replicate = others};
    const PipelinePartition even = over(stages);
    using enum Schedule;
    expect_like_one_rank({.partition = even, .mesh = shards, .micro_batches = 2, .schedule = one_forward_one_backward});
    expect_like_one_rank(
        {.partition = even, .mesh = mixed, .micro_batches = 2, .schedule = zero_bubble, .policy = delayed});
    expect_like_one_rank({.partition = even,
                          .mesh = copies,
                          .micro_batches = stages + 1,
                          .schedule = one_forward_one_backward,
                          .policy = full,
                          .tied = false,
                          .accumulation = GradientAccumulation::local});
    expect_like_one_rank({.partition = even, .mesh = shards, .micro_batches = 1, .schedule = grouped, .tied = false});
  }
}

TEST(Pipeline, VirtualStagesTrainLikeOneRank) {
  const int world = the_world->size();
  if (world == 1) GTEST_SKIP() << "needs two ranks or more";
  const PipelinePartition partition{.stages = 2, .ends = {1, 3, 4, 5}};
  expect_like_one_rank({.partition = partition,
                        .mesh = {.shard = world / 2},
                        .micro_batches = 2,
                        .schedule = Schedule::grouped,
                        .policy = {.delay_weight_gradients = true}});
  for (const int micro_batches : {2, 4}) {
    expect_like_one_rank({.partition = partition,
                          .mesh = {.shard = world / 2},
                          .micro_batches = micro_batches,
                          .schedule = Schedule::interleaved,
                          .policy = {.checkpointing = Checkpointing::full}});
  }
  if (world < 4) return;
  expect_like_one_rank({.partition = {.stages = 4, .ends = {0, 1, 2, 3, 3, 4, 5, 5}},
                        .mesh = {.shard = world / 4},
                        .micro_batches = 8,
                        .schedule = Schedule::interleaved,
                        .tied = false});
}

// Stages change where a layer runs, not what it computes: without sums over ranks, not a bit differs.
TEST(Pipeline, GradientsAreBitwiseThoseOfOneRank) {
  const int world = the_world->size();
  if (world == 1) GTEST_SKIP() << "needs two ranks or more";
  for (const int micro_batches : {1, world - 1, world, 3 * world + 1}) {
    const Staged c{.partition = over(world),
                   .micro_batches = micro_batches,
                   .tied = false,
                   .accumulation = GradientAccumulation::local};
    const models::Model model(testing::toy_description(false, 5));
    plan::LayoutChoices staged = layout_of(c, model), one = alone(c, model);
    one.micro_batches = micro_batches;
    const std::int64_t sequences = micro_batches * staged.batch_sizes.sequences;
    const auto mesh = rank_mesh(plan::derive(staged, model).mesh);
    const testing::Outcome cut = testing::run(model, staged, *mesh, sequences, 2e-4);
    const testing::Outcome whole =
        testing::on_one_rank([&] { return testing::run(model, one, *comm::make_self_mesh(), sequences, 0); });
    EXPECT_EQ(cut.loss, whole.loss) << c.text();
    EXPECT_EQ(cut.gradients.empty(), the_world->size() == 8 && the_world->rank() == Rank(4))
        << "only model chunk 4 has no block";
    for (const auto& [name, gradient] : cut.gradients) {
      const std::vector<float>& expected = whole.gradients.at(name);
      ASSERT_EQ(gradient.size(), expected.size());
      EXPECT_EQ(std::memcmp(gradient.data(), expected.data(), gradient.size() * sizeof(float)), 0)
          << c.text() << ": " << name;
    }
  }
}

// Several micro-batches of each step are in the stages at the same time. Five in steps of three: one has no tokens.
TEST(Pipeline, EvaluatesLikeOneRank) {
  const int world = the_world->size();
  if (world == 1) GTEST_SKIP() << "needs two ranks or more";
  const models::Model model(testing::toy_with_experts());
  const auto loss_of = [&](plan::LayoutChoices layout, comm::Mesh& mesh, std::int64_t batch_size) {
    const testing::ToySteps steps(model, layout, mesh.coordinate(), batch_size);
    const auto device = rank_device({.random_delay_s = 2e-4, .delay_seed = 5});
    engine::Session session(model, plan::derive(layout, model), *device, mesh, {step::Purpose::loss}, std::nullopt,
                            {.replay = true});
    session.initialise(3);
    std::vector<double> statistics;
    const auto [sum, tokens] = engine::evaluate_loss(session, steps.loader(), 2, nullptr, &statistics);
    EXPECT_EQ(tokens, steps.targets(0) + steps.targets(1));
    return std::pair(sum, statistics);
  };
  const std::vector<PipelinePartition> partitions = {{.stages = 2, .ends = {1, 2}},
                                                     {.stages = 2, .ends = {0, 1, 2, 2}}};
  for (const PipelinePartition& partition : partitions) {
    const Staged staged{.partition = partition, .mesh = {.shard = world / 2}, .micro_batches = 5};
    plan::LayoutChoices layout = layout_of(staged, model);
    layout.forward_micro_batches = 3;
    const std::int64_t sequences = 5 * layout.batch_sizes.sequences * layout.data_ranks();
    const auto mesh = rank_mesh(plan::derive(layout, model).mesh);
    const auto [cut, cut_statistics] = loss_of(layout, *mesh, sequences);
    const auto [one, statistics] =
        testing::on_one_rank([&] { return loss_of(alone(staged, model), *comm::make_self_mesh(), sequences); });
    EXPECT_NEAR(cut, one, 1e-6 * one) << staged.text();
    ASSERT_EQ(cut_statistics.size(), statistics.size());
    for (std::size_t i = 0; i < statistics.size(); ++i) {
      EXPECT_NEAR(cut_statistics[i], statistics[i], 1e-5 * (1 + std::abs(statistics[i]))) << i;
    }
  }
}

}  // namespace pipeline_test
}  // namespace hawser
