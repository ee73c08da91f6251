// Experts over ranks, with a filling of the token seam that sends pieces of equal size: losses, their statistics,
// gradients and states are those of one rank that has all experts.
#include "base/testing/temporary_folder.h"
#include "engine/load_state.h"
#include "experts_case.h"
#include "nn/testing/context.h"
#include "ops/moe/router.h"
#include "train/saver.h"

namespace hawser {
namespace experts_test {

using testing::CaseName;
using testing::CaseTest;
using testing::counts_of;
using testing::expect_routing_and_gradients;
using testing::kExperts;
using testing::MeshCase;
using testing::Outcome;
using testing::outcome_of_mesh;
using testing::outcome_of_one_rank;
using testing::toy_layout;
using testing::Trained;
using testing::TwoMeshes;
using testing::Weights;

// Every degree that the world has, folded from shard x context with and without replicas.
std::vector<comm::MeshSizes> expert_meshes() {
  std::vector<comm::MeshSizes> out;
  const int world = the_world->size();
  for (int expert = 2; expert <= std::min(world, 8); expert *= 2) {
    for (const int context : {1, 2}) {
      for (const int replicate : {1, 2}) {
        const int shard = world / (context * replicate);
        if (shard == 0 || shard * context % expert != 0) continue;
        out.push_back({.context = context, .shard = shard, .replicate = replicate, .expert = expert});
      }
    }
  }
  return out;
}

// Two micro-batches of several are in flight if weight gradients are delayed.
MeshCase in_flight(MeshCase c) {
  c.in_flight = c.policy.delay_weight_gradients && c.micro_batches > 1 ? 2 : 1;
  return c;
}

using ExpertGradients = CaseTest<MeshCase>;

void expect_gradients_of_one_rank(const MeshCase& c) {
  const models::ModelDescription whole = testing::toy_with_experts(kExperts);
  static std::map<std::pair<int, int>, Outcome> references;
  Outcome& one = references[{c.data_ranks(), c.micro_batches}];
  if (one.gradients.empty()) one = outcome_of_one_rank(whole, c);
  expect_routing_and_gradients(c, outcome_of_mesh(whole, c), one);
}

TEST_P(ExpertGradients, AreThoseOfOneRank) {
  expect_gradients_of_one_rank(GetParam());
}

// Each mesh has one policy, accumulation and number of pieces; each of these has meshes.
std::vector<MeshCase> in_turn() {
  const std::vector<nn::SavePolicy> policies = nn::testing::all_policies();
  std::vector<MeshCase> out;
  std::size_t turn = static_cast<std::size_t>(the_world->size()) / 2;
  for (const comm::MeshSizes& mesh : expert_meshes()) {
    const int count = the_world->size() == 2 ? 6 : the_world->size() == 4 ? 2 : 1;
    for (int i = 0; i < count; ++i, turn += 5) {
      out.push_back(
          in_flight({.mesh = mesh,
                     .policy = policies[turn % policies.size()],
                     .micro_batches = turn % 2 == 0 ? 1 : 3,
                     .accumulation = turn % 4 == 1 ? GradientAccumulation::local : GradientAccumulation::sharded,
                     .pieces = turn % 3 == 0 ? 1 : 4}));
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(InTurn, ExpertGradients, ::testing::ValuesIn(in_turn()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ExpertGradients);  // one rank has all experts

using FullExpertGradients = CaseTest<MeshCase>;

TEST_P(FullExpertGradients, AreThoseOfOneRank) {
  expect_gradients_of_one_rank(GetParam());
}

std::vector<MeshCase> every_policy() {
  std::vector<MeshCase> out;
  for (const comm::MeshSizes& mesh : expert_meshes()) {
    for (const nn::SavePolicy& policy : nn::testing::all_policies()) {
      for (const int micro_batches : {1, 3}) {
        for (const int pieces : {1, 2, 4}) {
          out.push_back(in_flight({.mesh = mesh, .policy = policy, .micro_batches = micro_batches, .pieces = pieces}));
        }
      }
    }
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(EveryPolicy, FullExpertGradients, ::testing::ValuesIn(every_policy()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FullExpertGradients);

MeshCase largest(const nn::SavePolicy& policy = {}) {
  const int world = the_world->size();
  return in_flight({.mesh = {.shard = world, .expert = world}, .policy = policy, .micro_batches = 2, .pieces = 2});
}

struct Skew {
  MeshCase on;
  const char* tokens;
  std::int64_t top_k;
  std::array<float, kExperts> router;  // of each expert; 0: as it is
  int without;                         // experts without a token, at least

  std::string name() const { return testing::joined(on.name(), tokens); }
  friend void PrintTo(const Skew& c, std::ostream* out) { *out << c.name(); }
};

using ExpertSkews = CaseTest<Skew>;

// The logits of tokens are about the same with a large bias of the norm, so that weights of the router decide.
TEST_P(ExpertSkews, HaveTheGradientsOfOneRank) {
  const Skew& skew = GetParam();
  models::ModelDescription whole = testing::toy_with_experts(kExperts, skew.top_k);
  for (models::BlockDescription& block : whole.blocks) {
    block.moe->normalise_top_k = skew.top_k > 1;
    block.moe->norm_config = {.kind = nn::NormKind::layer, .bias = true};
  }
  const Weights weights = [&](const std::string& name, std::int64_t element) {
    if (name.ends_with("post_attention_layernorm.bias")) return 2.0f;
    if (!name.ends_with("block_sparse_moe.gate.weight")) return NAN;
    const float value = skew.router[static_cast<std::size_t>(element / 24)];
    return value == 0 ? NAN : value / 8;
  };
  const Outcome one = outcome_of_one_rank(whole, skew.on, weights);
  const std::vector<float> counts = counts_of(one.statistics);
  EXPECT_GE(std::count(counts.begin(), counts.begin() + kExperts, 0.0f), skew.without);
  expect_routing_and_gradients(skew.on, outcome_of_mesh(whole, skew.on, weights), one);
}

std::vector<Skew> skews() {
  std::vector<Skew> out;
  if (the_world->size() == 1) return out;
  for (const nn::SavePolicy& policy : {nn::SavePolicy{}, nn::SavePolicy{Checkpointing::full, true}}) {
    const MeshCase on = largest(policy);
    out.push_back({on, "all_to_one_expert", 1, {-1, -1, -1, -1, -1, 1, -1, -1}, 7});
    out.push_back({on, "all_to_the_first_experts", 2, {2, 1, -1, -1, -1, -1, -1, -1}, 6});
    out.push_back({on, "all_to_the_last_experts", 2, {-1, -1, -1, -1, -1, -1, 1, 2}, 6});
    out.push_back({on, "none_to_one_expert", 2, {0, 0, 0, -1, 0, 0, 0, 0}, 1});
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(Skews, ExpertSkews, ::testing::ValuesIn(skews()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ExpertSkews);  // no ranks to skew

Trained trained(const models::ModelDescription& whole, const MeshCase& c, const testing::Training& training = {}) {
  const auto model = part_of(whole, c);
  plan::LayoutChoices layout = toy_layout(c, *model);
  layout.optimizer = optim::make_adamw({.epsilon = 1e-4});
  return testing::train(*model, layout, training);
}

const nn::SavePolicy kFull{.checkpointing = Checkpointing::full}, kDelayed{.delay_weight_gradients = true},
    kFullDelayed{.checkpointing = Checkpointing::full, .delay_weight_gradients = true};

using ExpertTraining = CaseTest<MeshCase>;

// With active clipping. AdamW divides by the size of gradients, some of which cancel to rounding noise: a larger
// epsilon shows the gradients themselves.
TEST_P(ExpertTraining, IsThatOfOneRank) {
  const MeshCase& c = GetParam();
  const models::ModelDescription whole = testing::toy_with_experts(kExperts);
  const Trained ours = trained(whole, c);
  const models::Model one(whole);
  plan::LayoutChoices layout = layout_of_one_rank(c, one);
  layout.optimizer = optim::make_adamw({.epsilon = 1e-4});
  const testing::Tensors after = testing::expect_training_of_one_rank(one, layout, c.batch_size(), ours);
  EXPECT_LT(testing::difference(ours.after, after, "model"), 1e-6);
}

std::vector<MeshCase> trainings() {
  std::vector<MeshCase> out = {largest(kFullDelayed)};
  const std::vector<comm::MeshSizes> meshes = expert_meshes();
  if (!meshes.empty()) out.push_back(in_flight({.mesh = meshes.front(), .policy = kDelayed, .micro_batches = 2}));
  return out;
}
INSTANTIATE_TEST_SUITE_P(Shards, ExpertTraining, ::testing::ValuesIn(trainings()), CaseName());

// Tensor ranks have the same experts. Without sequence parallelism they compute the same; with it each routes its own
// rows.
std::vector<MeshCase> tensor_ranks() {
  std::vector<MeshCase> out;
  const int world = the_world->size();
  if (world < 2) return out;
  for (const bool sequence_parallel : {false, true}) {
    MeshCase c = in_flight({.mesh = {.tensor = 2, .shard = world / 2, .expert = world / 2},
                            .policy = sequence_parallel ? kFullDelayed : nn::SavePolicy{},
                            .micro_batches = 2,
                            .division = {.vocabulary = true, .sequence_parallel = sequence_parallel}});
    out.push_back(c);
    if (world < 8) continue;
    c.mesh = {.tensor = 2, .context = 2, .shard = 2, .expert = 2};
    out.push_back(c);
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(TensorRanks, ExpertTraining, ::testing::ValuesIn(tensor_ranks()), CaseName());

// Four ranks, which have different experts: over shards, over context, or over tensor ranks, which route different rows
// with sequence parallelism. The last two cases have two ranks with the same experts.
std::vector<MeshCase> four_ranks() {
  if (the_world->size() != 4) return {};
  std::vector<MeshCase> out(5, {.micro_batches = 2});
  out[0].mesh = {.shard = 4, .expert = 4};
  out[1].mesh = {.context = 2, .shard = 2, .expert = 4};
  out[2].mesh = {.tensor = 2, .shard = 2, .expert = 4, .expert_over_tensor = true};
  out[3].mesh = {.tensor = 2, .shard = 2, .expert = 2, .expert_over_tensor = true};
  out[4].mesh = {.tensor = 2, .context = 2, .expert = 2, .expert_over_tensor = true};
  out[0].policy = out[2].policy = kFullDelayed;
  out[0].pieces = out[2].pieces = 2;
  out[1].row_bound = 4;  // not exceeded
  for (MeshCase& c : out) {
    if (c.mesh.tensor > 1) c.division = {.vocabulary = true, .sequence_parallel = true};
    c = in_flight(c);
  }
  return out;
}
INSTANTIATE_TEST_SUITE_P(FourRanks, ExpertTraining, ::testing::ValuesIn(four_ranks()), CaseName());

TEST(ExpertRanks, OverTensorRanksNeedRowsOfTheirOwn) {
  const comm::MeshSizes mesh{.tensor = 2, .shard = 2, .expert = 4, .expert_over_tensor = true};
  models::ModelDescription d = testing::toy_with_experts(kExperts);
  for (models::BlockDescription& block : d.blocks) block.moe->experts_shard = {.index = 0, .count = 4};
  const models::Model model(testing::half_of(std::move(d), 0, {.vocabulary = true}),
                            nn::FlatSpecOf([](const nn::Param& param) { return param.flat; }));
  EXPECT_THROW(plan::plan_rank(model, plan::derive(toy_layout({.mesh = mesh}, model), model), step::Purpose::train, 0),
               InternalError);
}

// A bound of the rows that is not exceeded changes the buffers only.
TEST(ExpertRanks, ABoundOfRowsHasTheBitsOfNone) {
  if (the_world->size() == 1) GTEST_SKIP() << "needs several ranks";
  const models::ModelDescription whole = testing::toy_with_experts(kExperts, 4);
  MeshCase c = largest(kFullDelayed);
  const Trained all = trained(whole, c);
  c.row_bound = 1.3;
  const auto rows = [&](std::optional<double> bound) {
    return nn::TokenExchange::Sizes{.tokens = 2 * testing::kToyLength,
                                    .per_token = 4,
                                    .experts = kExperts,
                                    .local_experts = kExperts / c.mesh.expert,
                                    .row_bound = bound}
        .expert_rows();
  };
  EXPECT_LT(rows(c.row_bound), rows(std::nullopt));
  const Trained bounded = trained(whole, c);
  EXPECT_TRUE(bounded.after == all.after);
  EXPECT_EQ(bounded.losses, all.losses);
}

TEST(ExpertRanks, RepeatBitForBit) {
  if (the_world->size() == 1) GTEST_SKIP() << "needs several ranks";
  const models::ModelDescription whole = testing::toy_with_experts(kExperts);
  const Trained first = trained(whole, largest(kDelayed)), again = trained(whole, largest(kDelayed));
  EXPECT_TRUE(first.after == again.after);
  EXPECT_EQ(first.losses, again.losses);
}

using ExpertStates = CaseTest<TwoMeshes>;

// A checkpoint has all experts, whatever ranks they were on.
TEST_P(ExpertStates, AreSavedAndLoadedOnAnotherMesh) {
  const auto& [from, to] = GetParam();
  const models::ModelDescription whole = testing::toy_with_experts(kExperts);
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  const Trained saved = trained(whole, from, {.inputs = {0}, .look = [&](engine::Session& session) {
                                                train::save(session, the_world, {.root = root},
                                                            {.step = 1, .recipe = "{}", .config = "{}"});
                                              }});
  checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(1)));
  const auto model = part_of(whole, to);
  const auto mesh = rank_mesh(to.mesh);
  const auto device = rank_device();
  engine::Session session(*model, plan::derive(toy_layout(to, *model), *model), *device, *mesh, {step::Purpose::train});
  session.initialise(4);
  EXPECT_FALSE(testing::assembled(session) == saved.after);
  engine::load(session, checkpoint);
  EXPECT_TRUE(testing::assembled(session) == saved.after);
}

std::vector<TwoMeshes> pairs_of_meshes() {
  const int world = the_world->size();
  if (world == 1) return {};
  const MeshCase all = largest(), sharded{.mesh = {.shard = world}},
                 context{.mesh = {.context = 2, .shard = world / 2, .expert = 2}};
  return testing::each_to_next({all, sharded, context});
}
INSTANTIATE_TEST_SUITE_P(Meshes, ExpertStates, ::testing::ValuesIn(pairs_of_meshes()), CaseName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ExpertStates);  // one rank has one mesh

TEST(ExpertRanks, AModelWithOtherExpertsIsRejected) {
  const int world = the_world->size();
  models::ModelDescription description = testing::toy_with_experts(kExperts);
  for (models::BlockDescription& block : description.blocks) block.moe->experts_shard = {.index = 1, .count = 2};
  const models::Model model(description);
  const auto device = rank_device();
  const auto mesh = rank_mesh({.shard = world});
  const plan::LayoutChoices layout = testing::toy_layout({.mesh = {.shard = world}}, model);
  EXPECT_THROW(engine::Session(model, plan::derive(layout, model), *device, *mesh, {step::Purpose::train}),
               InternalError);
  EXPECT_THROW(plan::plan_rank(model, plan::derive(layout, model), step::Purpose::train, 0), InternalError);
}

// Reads the routing of the last route() call, whatever the caller passes: a seam that has a state.
class RememberingExchange : public testing::PiecesExchange {
 public:
  using PiecesExchange::PiecesExchange;
  void route(nn::LayerContext& ctx, const Routing& r) override {
    PiecesExchange::route(ctx, r);
    last_ = r;
  }
  std::unique_ptr<Dispatch> dispatch(nn::LayerContext& ctx, const Routing&, const TensorView& x,
                                     Weights weights) override {
    return PiecesExchange::dispatch(ctx, last_, x, weights);
  }
  std::unique_ptr<Combine> combine(nn::LayerContext& ctx, const Routing&, DType dtype, std::int64_t columns,
                                   Weights weights) override {
    return PiecesExchange::combine(ctx, last_, dtype, columns, weights);
  }

 private:
  Routing last_;
};

// It works as long as the next call is of the same layer and micro-batch, and no longer.
TEST(ExpertRanks, ASeamThatRemembersItsLastRoutingFails) {
  if (the_world->size() == 1) GTEST_SKIP() << "needs several ranks";
  models::ModelDescription whole = testing::toy_with_experts(kExperts);
  whole.blocks.resize(1);
  for (const int micro_batches : {1, 2}) {
    const MeshCase c = in_flight({.mesh = largest().mesh, .policy = kDelayed, .micro_batches = micro_batches});
    const Outcome one = outcome_of_one_rank(whole, c);
    const auto model = part_of(whole, c);
    plan::LayoutChoices layout = toy_layout(c, *model);
    layout.token_exchange = [](comm::Group& expert) { return std::make_shared<RememberingExchange>(expert, 1); };
    const auto mesh = rank_mesh(c.mesh);
    const Outcome ours = testing::run(*model, layout, *mesh, c.batch_size(), 2e-4);
    if (micro_batches == 1) {
      expect_routing_and_gradients(c, ours, one);
      continue;
    }
    double difference = 0, norm = 0;
    for (const auto& [name, gradient] : ours.gradients) {
      if (name.find(".experts.") == std::string::npos) continue;
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        const double reference = one.gradients.at(name)[i];
        difference += std::isnan(gradient[i]) ? reference * reference : std::pow(gradient[i] - reference, 2);
        norm += reference * reference;
      }
    }
    EXPECT_GT(difference, 1e-2 * norm);
  }
}

}  // namespace experts_test
}  // namespace hawser
