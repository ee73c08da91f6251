// Experts in the layers of pipeline stages: the losses of the routers couple all layers, so every stage needs the
// statistics of all of them before backward.
#include <cstring>

#include "engine/gradient_norms.h"
#include "ops/moe/router.h"
#include "outcome.h"
#include "support/pieces_exchange.h"
#include "support/pipeline.h"
#include "support/tensor_parallel.h"
#include "support/toy_slices.h"
#include "toy_training.h"

namespace hawser {
namespace pipeline_experts_test {

using models::PipelinePartition;
using testing::Outcome;

constexpr std::int64_t kExperts = 8;

enum class Schedule { grouped, one_forward_one_backward, zero_bubble };

struct Staged {
  PipelinePartition partition;
  std::vector<int> with_experts;  // blocks
  int micro_batches = 1;
  Schedule schedule = Schedule::one_forward_one_backward;
  nn::SavePolicy policy;
  comm::MeshSizes mesh;  // of a stage
  bool sequence_parallel = false;
  bool given = false;  // Purpose::gradient_norms_of_part

  std::int64_t sequences() const { return 2LL * mesh.shard * mesh.replicate; }  // of a micro-batch
  std::string text() const {
    std::string out = cat("stages ", partition.stages, ", ends");
    for (const int end : partition.ends) out += cat(" ", end);
    out += ", experts in";
    for (const int block : with_experts) out += cat(" ", block);
    return out + cat(", micro-batches ", micro_batches, ", schedule ", static_cast<int>(schedule), ", checkpointing ",
                     static_cast<int>(policy.checkpointing), policy.delay_weight_gradients ? ", delayed weights" : "",
                     ", tensor ", mesh.tensor, sequence_parallel ? " with sequence parallelism" : "", ", context ",
                     mesh.context, ", shard ", mesh.shard, ", expert ", mesh.expert, given ? ", given" : "");
  }
};

models::ModelDescription description_of(const Staged& c) {
  models::ModelDescription d = testing::toy_description(false, 5);
  for (const int block : c.with_experts) testing::set_experts(d, block, kExperts, 2);
  return d;
}

comm::MeshSizes sizes_of(const Staged& c) {
  comm::MeshSizes sizes = c.mesh;
  sizes.pipeline = c.partition.stages;
  sizes.interleaved = c.partition.model_chunks() > c.partition.stages;
  return sizes;
}

// What this rank has of the model.
std::unique_ptr<models::Model> part_of(const Staged& c) {
  models::ModelDescription d = description_of(c);
  const comm::MeshCoordinate place = comm::coordinate_of(the_world->rank().value(), sizes_of(c));
  for (models::BlockDescription& block : d.blocks) {
    if (!block.moe || c.mesh.expert == 1) continue;
    block.moe->experts_shard = {.index = comm::expert_part(place, c.mesh), .count = c.mesh.expert};
  }
  if (c.mesh.tensor > 1) d = testing::half_of(std::move(d), place.tensor, {.vocabulary = true});
  const nn::FlatSpecOf own([](const nn::Param& param) { return param.flat; });
  return std::make_unique<models::Model>(std::move(d), c.sequence_parallel ? nn::with_sequence_parallelism(own) : own);
}

plan::LayoutChoices layout_of(const Staged& c, const models::Model& model) {
  plan::LayoutChoices layout = testing::toy_layout(c.mesh, model);
  layout.sequence_parallel = c.sequence_parallel;
  layout.micro_batches = c.micro_batches;
  layout.accumulation = GradientAccumulation::local;
  layout.policies.assign(layout.policies.size(), c.policy);
  layout.partition = c.partition;
  const int stages = c.partition.stages;
  if (c.schedule == Schedule::grouped) {
    layout.schedule.group = c.micro_batches;
  } else {
    layout.schedule.passes = c.schedule == Schedule::zero_bubble ? testing::zero_bubble_of(stages)
                                                                 : testing::one_forward_one_backward_of(stages);
  }
  layout.replace_seams = [c](nn::Seams& seams, comm::Mesh& groups) {
    if (c.mesh.expert > 1) seams.tokens = std::make_shared<testing::PiecesExchange>(groups.expert(), 2);
    if (c.mesh.tensor == 1) return;
    seams.tensor_reduce = std::make_shared<testing::TensorSums>(groups.tensor());
    if (c.sequence_parallel) {
      seams.redistribute = std::make_shared<testing::SequenceParallel>(groups.tensor());
    } else {
      seams.redistribute = std::make_shared<testing::TensorParallel>(groups.tensor());
    }
  };
  return layout;
}

// One rank, whose micro-batch has the rows of all ranks' together: the auxiliary loss is of each micro-batch.
plan::LayoutChoices alone(const Staged& c, const models::Model& one) {
  plan::LayoutChoices layout = testing::toy_layout({}, one);
  layout.batch_sizes.sequences = c.sequences();
  layout.micro_batches = c.micro_batches;
  layout.accumulation = GradientAccumulation::local;
  layout.policies.assign(layout.policies.size(), c.policy);
  return layout;
}

step::Purpose purpose_of(const Staged& c) {
  return c.given ? step::Purpose::gradient_norms_of_part : step::Purpose::gradient_norms;
}

Outcome on_the_mesh(const Staged& c) {
  const auto model = part_of(c);
  const plan::LayoutChoices layout = layout_of(c, *model);
  const auto mesh = rank_mesh(plan::derive(layout, *model).mesh);
  return testing::run(*model, layout, *mesh, c.sequences() * c.micro_batches, 2e-4, nullptr, {}, purpose_of(c));
}

Outcome outcome_of_one_rank(const Staged& c) {
  return testing::on_one_rank([&] {
    const models::Model one(description_of(c));
    return testing::run(one, alone(c, one), *comm::make_self_mesh(), c.sequences() * c.micro_batches, 0, nullptr, {},
                        purpose_of(c));
  });
}

std::vector<int> micro_batches_of(int stages) {
  return stages == 2 ? std::vector{1, 2, 7} : std::vector{1, stages - 1, stages, 3 * stages + 1};
}

// Partitions and blocks with experts, with the number of stages of the world.
std::vector<Staged> cuts() {
  switch (the_world->size()) {
    case 2:
      return {{.partition = {.stages = 2, .ends = {3, 5}}, .with_experts = {0, 1, 4}},
              {.partition = {.stages = 2, .ends = {5, 5}}, .with_experts = {1, 2}},  // a stage with only the head
              {.partition = {.stages = 2, .ends = {2, 5}}, .with_experts = {0}}};    // the last stage has no experts
    case 4:
      return {{.partition = {.stages = 4, .ends = {1, 3, 5, 5}}, .with_experts = {0, 3}},  // stages 1 and 3 have none
              {.partition = {.stages = 4, .ends = {2, 3, 4, 5}}, .with_experts = {1, 2, 3, 4}}};
    default:
      return {{.partition = {.stages = 8, .ends = {0, 1, 2, 3, 3, 4, 5, 5}}, .with_experts = {0, 2, 4}}};
  }
}

// The sum of the statistics over stages adds zeros: without sums over tokens not a bit differs from one rank's. Each
// stage has the loss of all layers once, and the statistics of all.
void expect_bits_of_one_rank(const Staged& c) {
  const Outcome cut = on_the_mesh(c), one = outcome_of_one_rank(c);
  EXPECT_GT(one.auxiliary_loss, 0.01) << c.text();
  EXPECT_EQ(cut.loss, one.loss) << c.text();
  EXPECT_EQ(cut.auxiliary_loss, one.auxiliary_loss) << c.text();
  EXPECT_EQ(cut.statistics, one.statistics) << c.text();
  EXPECT_EQ(one.statistics.size(),
            c.with_experts.size() * static_cast<std::size_t>(ops::router_statistics_size(kExperts)));
  for (const auto& [name, gradient] : cut.gradients) {
    const std::vector<float>& expected = one.gradients.at(name);
    ASSERT_EQ(gradient.size(), expected.size());
    EXPECT_EQ(std::memcmp(gradient.data(), expected.data(), gradient.size() * sizeof(float)), 0)
        << c.text() << ": " << name;
  }
}

TEST(PipelineExperts, GradientsAreBitwiseThoseOfOneRank) {
  const int world = the_world->size();
  if (world == 1) GTEST_SKIP() << "needs two ranks or more";
  const nn::SavePolicy policies[] = {{},
                                     {.checkpointing = Checkpointing::full},
                                     {.checkpointing = Checkpointing::projections, .delay_weight_gradients = true}};
  std::size_t turn = 0;
  const std::vector<Staged> all = cuts();
  for (const int micro_batches : micro_batches_of(world)) {
    for (const Schedule schedule : {Schedule::one_forward_one_backward, Schedule::zero_bubble, Schedule::grouped}) {
      if (schedule == Schedule::grouped && micro_batches != world) continue;
      Staged c = all[turn % all.size()];
      c.micro_batches = micro_batches;
      c.schedule = schedule;
      c.policy = schedule == Schedule::zero_bubble ? policies[2] : policies[turn % 3];
      expect_bits_of_one_rank(c);
      ++turn;
    }
  }
}

TEST(PipelineExperts, VirtualStagesHaveTheBitsOfOneRank) {
  if (the_world->size() != 2) GTEST_SKIP() << "two stages";
  const std::vector<int> with_experts = {0, 1,
                                         4};  // the second stage's first model chunk has two, its last model chunk none
  expect_bits_of_one_rank({.partition = {.stages = 2, .ends = {0, 2, 5, 5}},
                           .with_experts = with_experts,
                           .micro_batches = 3,
                           .schedule = Schedule::grouped});
}

// The gradient of the loss of a step's statistics together, which forward-only steps have summed over all stages.
TEST(PipelineExperts, GivenStatisticsHaveTheBitsOfOneRank) {
  if (the_world->size() == 1) GTEST_SKIP() << "needs two ranks or more";
  Staged c = cuts().front();
  c.micro_batches = 3;
  c.given = true;
  expect_bits_of_one_rank(c);
}

// Data ranks have other rows.
TEST(PipelineExperts, DataRanksHaveTheGradientsOfOneRank) {
  if (the_world->size() != 4) GTEST_SKIP() << "two stages of two ranks";
  const PipelinePartition partition{.stages = 2, .ends = {3, 5}};
  const std::vector<Staged> cases = {
      {.partition = partition, .with_experts = {0, 4}, .micro_batches = 3, .mesh = {.shard = 2}},
      {.partition = partition,
       .with_experts = {1, 2},
       .micro_batches = 2,
       .schedule = Schedule::zero_bubble,
       .policy = {.delay_weight_gradients = true},
       .mesh = {.context = 2}}};
  for (const Staged& c : cases) {
    const Outcome cut = on_the_mesh(c), one = outcome_of_one_rank(c);
    EXPECT_NEAR(cut.loss, one.loss, 1e-6 * one.loss) << c.text();
    EXPECT_NEAR(cut.auxiliary_loss, one.auxiliary_loss, 1e-6 * one.auxiliary_loss) << c.text();
    testing::compare_shards({.context = c.mesh.context, .shard = c.mesh.shard}, cut, one, 1e-5);
  }
}

// Experts over the ranks of a stage, and tensor ranks, which have other rows with sequence parallelism only; with two
// micro-batches in flight. AdamW divides by the size of gradients, some of which cancel to rounding noise: a larger
// epsilon shows the gradients themselves.
TEST(PipelineExperts, ExpertAndTensorRanksTrainLikeOneRank) {
  if (the_world->size() != 4) GTEST_SKIP() << "two stages of two ranks";
  const Staged stages{.partition = {.stages = 2, .ends = {3, 5}}, .with_experts = {1, 4}, .micro_batches = 2};
  std::vector<Staged> cases(3, stages);
  cases[0].mesh = {.shard = 2, .expert = 2};
  cases[0].policy = {.checkpointing = Checkpointing::full};
  cases[1].mesh = cases[2].mesh = {.tensor = 2};
  cases[1].schedule = Schedule::zero_bubble;
  cases[1].policy = {.delay_weight_gradients = true};
  cases[2].sequence_parallel = true;
  for (const Staged& c : cases) {
    const auto model = part_of(c);
    plan::LayoutChoices layout = layout_of(c, *model);
    layout.optimizer = optim::make_adamw({.epsilon = 1e-4});
    const testing::Trained many = testing::train(*model, layout, {.micro_batches = c.micro_batches});
    const models::Model one(description_of(c));
    plan::LayoutChoices whole = alone(c, one);
    whole.optimizer = layout.optimizer;
    testing::expect_one_ranks_training(one, whole, c.sequences() * c.micro_batches, many, c.text());
  }
}

// Gradient norms of tensors, by name; with `verified`, those of the reference of a verified step.
std::map<std::string, float> norms_of(const models::Model& model, plan::LayoutChoices layout, comm::Mesh& mesh,
                                      std::int64_t batch_size, bool verified) {
  const testing::ToySteps steps(model, layout, mesh.coordinate(), batch_size);
  const auto device = rank_device({.random_delay_s = 2e-4, .delay_seed = 5});
  const auto purpose = verified ? step::Purpose::train : step::Purpose::gradient_norms;
  engine::Session session(model, plan::derive(layout, model), *device, mesh, {purpose});
  session.initialise(3);
  step::StepInput input = steps.input(0);
  input.record.learning_rate = 0.01f;
  const step::StepOutput output = verified ? session.enqueue_verified(input).reference : session.run(purpose, input);
  session.synchronize();
  std::map<std::string, float> norms;
  const std::vector<engine::TensorNorm> tensors = engine::gradient_norms(session, output);
  for (const engine::TensorNorm& tensor : tensors) norms[tensor.name] = tensor.norm;
  EXPECT_EQ(norms.size(), tensors.size());
  return norms;
}

// Every rank gets the norms of all experts, of all stages, and of all other tensors. The norm of all tensors is in the
// clip coefficients that other tests compare.
TEST(PipelineExperts, NormsOfTensorsAreThoseOfOneRank) {
  if (the_world->size() != 4 && the_world->size() != 8) GTEST_SKIP() << "two stages of two or four ranks";
  const int ranks = the_world->size() / 2;
  Staged c{.partition = {.stages = 2, .ends = {3, 5}}, .with_experts = {1, 4}, .micro_batches = 2};
  c.mesh = {.shard = ranks, .expert = 2};
  for (const bool verified : {false, true}) {
    const auto spec_of = [&](const nn::FlatSpecOf& own) {
      return verified ? nn::with_fp8_weights(own, [](int) { return true; }) : own;
    };
    const nn::FlatSpecOf own([](const nn::Param& param) { return param.flat; });
    const auto with_formats = [&](plan::LayoutChoices layout, const models::Model& model) {
      if (verified) plan::set_formats(layout, model, {.saturation_limit = 1, .verify_every = 1});
      return layout;
    };
    const auto plain = part_of(c);
    const models::Model part(plain->description(), spec_of(own)), one(description_of(c), spec_of(nn::common_domain));
    const plan::LayoutChoices layout = with_formats(layout_of(c, part), part);
    const auto mesh = rank_mesh(plan::derive(layout, part).mesh);
    const std::int64_t batch_size = c.sequences() * c.micro_batches;
    const auto many = norms_of(part, layout, *mesh, batch_size, verified);
    const auto expected = testing::on_one_rank(
        [&] { return norms_of(one, with_formats(alone(c, one), one), *comm::make_self_mesh(), batch_size, verified); });
    float largest = 0;
    for (const auto& [name, norm] : expected) largest = std::max(largest, norm);
    int experts = 0;
    for (const auto& [name, norm] : many) {
      EXPECT_NEAR(norm, expected.at(name), 1e-5 * std::max(norm, 1e-2f * largest)) << name << ", verified " << verified;
      if (name.find(".experts.") != std::string::npos) ++experts;
    }
    EXPECT_EQ(experts, 2 * 3 * kExperts);
  }
}

}  // namespace pipeline_experts_test
}  // namespace hawser
