// Experts in the layers of pipeline stages: the losses of the routers couple all layers, so every stage needs the
// statistics of all of them before backward.

#include "engine/gradient_norms.h"
#include "ops/moe/router.h"
#include "outcome.h"
#include "toy_training.h"

namespace hawser {
namespace pipeline_experts_test {

using models::PipelinePartition;
using testing::CaseName;
using testing::CaseTest;
using testing::MeshCase;
using testing::Outcome;
using testing::Schedule;

constexpr std::int64_t kExperts = 8;

struct ExpertStages {
  MeshCase stages;
  std::vector<int> with_experts;  // blocks
  bool given = false;             // Purpose::gradient_norms_of_part

  step::Purpose purpose() const {
    return given ? step::Purpose::gradient_norms_of_part : step::Purpose::gradient_norms;
  }
  std::string name() const {
    std::string blocks = "experts_in";
    for (const int block : with_experts) blocks += cat("_", block);
    return testing::joined(stages.name(), blocks, testing::name_if(given, "given"));
  }
  friend void PrintTo(const ExpertStages& c, std::ostream* out) { *out << c.name(); }
};

models::ModelDescription description_of(const ExpertStages& c) {
  models::ModelDescription d = testing::divisible(testing::toy_description(false, 5));
  for (const int block : c.with_experts) testing::set_experts(d, block, kExperts, 2);
  return d;
}

// What this rank has of the model.
std::unique_ptr<models::Model> part_of(const ExpertStages& c) {
  models::ModelDescription d = description_of(c);
  comm::MeshSizes sizes = c.stages.mesh;
  sizes.pipeline = c.stages.partition.stages;
  sizes.interleaved = c.stages.partition.model_chunks() > c.stages.partition.stages;
  const comm::MeshCoordinate place = comm::coordinate_of(the_world->rank().value(), sizes);
  for (models::BlockDescription& block : d.blocks) {
    if (!block.moe || sizes.expert == 1) continue;
    block.moe->experts_shard = {.index = comm::expert_part(place, c.stages.mesh), .count = sizes.expert};
  }
  if (sizes.tensor > 1) d = testing::half_of(d, place.tensor, c.stages.division);
  const nn::FlatSpecOf own([](const nn::Param& param) { return param.flat; });
  return std::make_unique<models::Model>(
      std::move(d), c.stages.division.sequence_parallel ? nn::with_sequence_parallelism(own) : own);
}

plan::LayoutChoices layout_of(const ExpertStages& c, const models::Model& model) {
  MeshCase stages = c.stages;
  stages.accumulation = GradientAccumulation::local;
  stages.pieces = 2;
  return testing::toy_layout(stages, model);
}

// A micro-batch of one rank has the rows of all ranks' together: the auxiliary loss is of each micro-batch.
plan::LayoutChoices layout_of_one_rank(const ExpertStages& c, const models::Model& one) {
  plan::LayoutChoices layout = testing::toy_layout(
      {.policy = c.stages.policy, .micro_batches = c.stages.micro_batches, .accumulation = GradientAccumulation::local},
      one);
  layout.batch_sizes.sequences = 2LL * c.stages.data_ranks();
  return layout;
}

Outcome outcome_of_mesh(const ExpertStages& c) {
  const auto model = part_of(c);
  const plan::LayoutChoices layout = layout_of(c, *model);
  const auto mesh = rank_mesh(plan::derive(layout, *model).mesh);
  return testing::run(*model, layout, *mesh, c.stages.batch_size(), 2e-4, nullptr, {}, c.purpose());
}

Outcome outcome_of_one_rank(const ExpertStages& c) {
  return testing::on_one_rank([&] {
    const models::Model one(description_of(c));
    return testing::run(one, layout_of_one_rank(c, one), *comm::make_self_mesh(), c.stages.batch_size(), 0, nullptr, {},
                        c.purpose());
  });
}

using PipelineExperts = CaseTest<ExpertStages>;

// The sum of the statistics over stages adds zeros: without sums over tokens not a bit differs from one rank's. Each
// stage has the loss of all layers once, and the statistics of all.
TEST_P(PipelineExperts, HaveTheBitsOfOneRank) {
  const ExpertStages& c = GetParam();
  const Outcome ours = outcome_of_mesh(c), one = outcome_of_one_rank(c);
  EXPECT_GT(one.auxiliary_loss, 0.01);
  EXPECT_EQ(ours.loss, one.loss);
  EXPECT_EQ(ours.auxiliary_loss, one.auxiliary_loss);
  EXPECT_EQ(ours.statistics, one.statistics);
  EXPECT_EQ(one.statistics.size(),
            c.with_experts.size() * static_cast<std::size_t>(ops::router_statistics_size(kExperts)));
  for (const auto& [name, gradient] : ours.gradients) {
    EXPECT_TRUE(testing::same_bits(gradient, one.gradients.at(name))) << name;
  }
}

// Partitions and blocks with experts, with the number of stages of the world.
std::vector<ExpertStages> cuts() {
  switch (the_world->size()) {
    case 1:
      return {};
    case 2:
      return {{{.partition = {.stages = 2, .ends = {3, 5}}}, {0, 1, 4}},
              {{.partition = {.stages = 2, .ends = {5, 5}}}, {1, 2}},  // a stage with only the head
              {{.partition = {.stages = 2, .ends = {2, 5}}}, {0}}};    // the last stage has no experts
    case 4:
      return {{{.partition = {.stages = 4, .ends = {1, 3, 5, 5}}}, {0, 3}},  // stages 1 and 3 have none
              {{.partition = {.stages = 4, .ends = {2, 3, 4, 5}}}, {1, 2, 3, 4}}};
    default:
      return {{{.partition = {.stages = 8, .ends = {0, 1, 2, 3, 3, 4, 5, 5}}}, {0, 2, 4}}};
  }
}

std::vector<ExpertStages> schedules() {
  std::vector<ExpertStages> out;
  const int world = the_world->size();
  const nn::SavePolicy policies[] = {{},
                                     {.checkpointing = Checkpointing::full},
                                     {.checkpointing = Checkpointing::projections, .delay_weight_gradients = true}};
  const std::vector<ExpertStages> all = cuts();
  if (all.empty()) return out;
  const std::vector<int> micro_batches =
      world == 2 ? std::vector{1, 2, 7} : std::vector{1, world - 1, world, 3 * world + 1};
  for (const int count : micro_batches) {
    for (const Schedule schedule : {Schedule::one_forward_one_backward, Schedule::zero_bubble, Schedule::grouped}) {
      if (schedule == Schedule::grouped && count != world) continue;
      const std::size_t turn = out.size();
      ExpertStages c = all[turn % all.size()];
      c.stages.micro_batches = count;
      c.stages.schedule = schedule;
      if (schedule == Schedule::grouped) c.stages.in_flight = count;
      c.stages.policy = schedule == Schedule::zero_bubble ? policies[2] : policies[turn % 3];
      out.push_back(c);
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Schedules, PipelineExperts, ::testing::ValuesIn(schedules()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PipelineExperts);  // one rank has no stages

// The second stage's first model chunk has two blocks with experts, its last model chunk none.
std::vector<ExpertStages> virtual_stages() {
  if (the_world->size() != 2) return {};
  return {{{.partition = {.stages = 2, .ends = {0, 2, 5, 5}}, .micro_batches = 3, .in_flight = 3}, {0, 1, 4}}};
}
INSTANTIATE_TEST_SUITE_P(VirtualStages, PipelineExperts, ::testing::ValuesIn(virtual_stages()), CaseName());

// The gradient of the loss of a step's statistics together, which forward-only steps have summed over all stages.
std::vector<ExpertStages> given_statistics() {
  std::vector<ExpertStages> out = cuts();
  if (out.empty()) return out;
  out.resize(1);
  out[0].stages.schedule = Schedule::one_forward_one_backward;
  out[0].stages.micro_batches = 3;
  out[0].given = true;
  return out;
}
INSTANTIATE_TEST_SUITE_P(GivenStatistics, PipelineExperts, ::testing::ValuesIn(given_statistics()), CaseName());

using PipelineExpertsOfDataRanks = CaseTest<ExpertStages>;

// Data ranks have other rows.
TEST_P(PipelineExpertsOfDataRanks, HaveTheGradientsOfOneRank) {
  const ExpertStages& c = GetParam();
  const Outcome ours = outcome_of_mesh(c), one = outcome_of_one_rank(c);
  EXPECT_NEAR(ours.loss, one.loss, 1e-6 * one.loss);
  EXPECT_NEAR(ours.auxiliary_loss, one.auxiliary_loss, 1e-6 * one.auxiliary_loss);
  testing::expect_gradients(c.stages.mesh, ours, one, 1e-5);
}

std::vector<ExpertStages> data_ranks() {
  if (the_world->size() != 4) return {};
  const PipelinePartition partition{.stages = 2, .ends = {3, 5}};
  return {{{.mesh = {.shard = 2},
            .partition = partition,
            .schedule = Schedule::one_forward_one_backward,
            .micro_batches = 3},
           {0, 4}},
          {{.mesh = {.context = 2},
            .partition = partition,
            .schedule = Schedule::zero_bubble,
            .policy = {.delay_weight_gradients = true},
            .micro_batches = 2},
           {1, 2}}};
}
INSTANTIATE_TEST_SUITE_P(TwoStages, PipelineExpertsOfDataRanks, ::testing::ValuesIn(data_ranks()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PipelineExpertsOfDataRanks);  // two stages of two ranks

using PipelineExpertsOfTensorRanks = CaseTest<ExpertStages>;

// Experts over the ranks of a stage, and tensor ranks, which have other rows with sequence parallelism only; with two
// micro-batches in flight. AdamW divides by the size of gradients, some of which cancel to rounding noise: a larger
// epsilon shows the gradients themselves.
TEST_P(PipelineExpertsOfTensorRanks, TrainLikeOneRank) {
  const ExpertStages& c = GetParam();
  const auto model = part_of(c);
  plan::LayoutChoices layout = layout_of(c, *model);
  layout.optimizer = optim::make_adamw({.epsilon = 1e-4});
  const testing::Trained trained = testing::train(*model, layout, {.micro_batches = c.stages.micro_batches});
  const models::Model one(description_of(c));
  plan::LayoutChoices of_one = layout_of_one_rank(c, one);
  of_one.optimizer = layout.optimizer;
  testing::expect_training_of_one_rank(one, of_one, c.stages.batch_size(), trained);
}

std::vector<ExpertStages> expert_and_tensor_ranks() {
  if (the_world->size() != 4) return {};
  const ExpertStages stages{
      {.partition = {.stages = 2, .ends = {3, 5}}, .schedule = Schedule::one_forward_one_backward, .micro_batches = 2},
      {1, 4}};
  std::vector<ExpertStages> out(3, stages);
  out[0].stages.mesh = {.shard = 2, .expert = 2};
  out[0].stages.policy = {.checkpointing = Checkpointing::full};
  out[1].stages.mesh = out[2].stages.mesh = {.tensor = 2};
  out[1].stages.schedule = Schedule::zero_bubble;
  out[1].stages.policy = {.delay_weight_gradients = true};
  out[1].stages.division = {.vocabulary = true};
  out[2].stages.division = {.vocabulary = true, .sequence_parallel = true};
  return out;
}
INSTANTIATE_TEST_SUITE_P(TwoStages, PipelineExpertsOfTensorRanks, ::testing::ValuesIn(expert_and_tensor_ranks()),
                         CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PipelineExpertsOfTensorRanks);  // two stages of two ranks

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

struct NormsCase {
  ExpertStages on;
  bool verified = false;

  std::string name() const { return testing::joined(on.name(), testing::name_if(verified, "verified")); }
  friend void PrintTo(const NormsCase& c, std::ostream* out) { *out << c.name(); }
};

using PipelineExpertsNorms = CaseTest<NormsCase>;

// Every rank gets the norms of all experts, of all stages, and of all other tensors. The norm of all tensors is in the
// clip coefficients that other tests compare.
TEST_P(PipelineExpertsNorms, AreThoseOfOneRank) {
  const auto& [c, verified] = GetParam();
  const auto spec_of = [verified = verified](const nn::FlatSpecOf& own) {
    return verified ? nn::with_fp8_weights(own, [](int) { return true; }) : own;
  };
  const nn::FlatSpecOf own([](const nn::Param& param) { return param.flat; });
  const auto with_formats = [verified = verified](plan::LayoutChoices layout, const models::Model& model) {
    if (verified) plan::set_formats(layout, model, {.saturation_limit = 1, .verify_every = 1});
    return layout;
  };
  const auto plain = part_of(c);
  const models::Model part(plain->description(), spec_of(own)), one(description_of(c), spec_of(nn::common_domain));
  const plan::LayoutChoices layout = with_formats(layout_of(c, part), part),
                            of_one = with_formats(layout_of_one_rank(c, one), one);
  const auto mesh = rank_mesh(plan::derive(layout, part).mesh);
  const std::int64_t batch_size = c.stages.batch_size();
  const auto norms = norms_of(part, layout, *mesh, batch_size, verified);
  const auto expected = testing::on_one_rank(
      [&, verified = verified] { return norms_of(one, of_one, *comm::make_self_mesh(), batch_size, verified); });
  float largest = 0;
  for (const auto& [name, norm] : expected) largest = std::max(largest, norm);
  int experts = 0;
  for (const auto& [name, norm] : norms) {
    EXPECT_NEAR(norm, expected.at(name), 1e-5 * std::max(norm, 1e-2f * largest)) << name;
    if (name.find(".experts.") != std::string::npos) ++experts;
  }
  EXPECT_EQ(experts, 2 * 3 * kExperts);
}

std::vector<NormsCase> norms_cases() {
  if (the_world->size() != 4 && the_world->size() != 8) return {};
  const ExpertStages c{{.mesh = {.shard = the_world->size() / 2, .expert = 2},
                        .partition = {.stages = 2, .ends = {3, 5}},
                        .schedule = Schedule::one_forward_one_backward,
                        .micro_batches = 2},
                       {1, 4}};
  return {{c, false}, {c, true}};
}
INSTANTIATE_TEST_SUITE_P(TwoStages, PipelineExpertsNorms, ::testing::ValuesIn(norms_cases()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(PipelineExpertsNorms);  // two stages of two or four ranks

}  // namespace pipeline_experts_test
}  // namespace hawser
