// Experts over ranks, with a filling of the token seam that sends pieces of equal size: losses, their statistics,
// gradients and states are those of one rank that has all experts.
#include <numeric>

#include "base/testing/temporary_folder.h"
#include "engine/load_state.h"
#include "experts_case.h"
#include "ops/moe/router.h"
#include "outcome.h"
#include "train/saver.h"

namespace hawser {
namespace experts_test {

using testing::alone_layout;
using testing::counts_of;
using testing::expect_gradients_of;
using testing::Experts;
using testing::kExperts;
using testing::on_the_mesh;
using testing::Outcome;
using testing::outcome_of_one_rank;
using testing::Trained;
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

void expect_gradients_of_one_rank(const std::vector<Experts>& cases) {
  const models::ModelDescription whole = testing::toy_with_experts(kExperts);
  std::map<std::pair<std::int64_t, int>, Outcome> one;  // by sequences and micro-batches
  for (const Experts& o : cases) {
    const std::pair key(o.sequences(), o.micro_batches);
    if (!one.contains(key)) one.emplace(key, outcome_of_one_rank(whole, o));
    expect_gradients_of(one.at(key), on_the_mesh(whole, o), o);
  }
}

// Each mesh has one policy, accumulation and number of pieces; each of these has meshes.
TEST(ExpertRanks, GradientsAreThoseOfOneRank) {
  const std::vector<nn::SavePolicy> policies = nn::testing::all_policies();
  std::vector<Experts> cases;
  std::size_t turn = static_cast<std::size_t>(the_world->size()) / 2;
  for (const comm::MeshSizes& mesh : expert_meshes()) {
    const int count = the_world->size() == 2 ? 6 : the_world->size() == 4 ? 2 : 1;
    for (int i = 0; i < count; ++i, turn += 5) {
      cases.push_back({.mesh = mesh,
                       .policy = policies[turn % policies.size()],
                       .micro_batches = turn % 2 == 0 ? 1 : 3,
                       .pieces = turn % 3 == 0 ? 1 : 4,
                       .accumulation = turn % 4 == 1 ? GradientAccumulation::local : GradientAccumulation::sharded});
    }
  }
  expect_gradients_of_one_rank(cases);
}

TEST(ExpertRanks, DISABLED_GradientsAreThoseOfOneRankOnEveryMeshUnderEveryPolicy) {
  std::vector<Experts> cases;
  for (const comm::MeshSizes& mesh : expert_meshes()) {
    for (const nn::SavePolicy& policy : nn::testing::all_policies()) {
      for (const int micro_batches : {1, 3}) {
        for (const int pieces : {1, 2, 4}) {
          cases.push_back({.mesh = mesh, .policy = policy, .micro_batches = micro_batches, .pieces = pieces});
        }
      }
    }
  }
  expect_gradients_of_one_rank(cases);
}

Experts largest(const nn::SavePolicy& policy = {}) {
  const int world = the_world->size();
  return {.mesh = {.shard = world, .expert = world}, .policy = policy, .micro_batches = 2, .pieces = 2};
}

// The logits of tokens are about the same with a large bias of the norm, so that weights of the router decide.
TEST(ExpertRanks, SkewsHaveTheGradientsOfOneRank) {
  if (the_world->size() == 1) GTEST_SKIP() << "no ranks to skew";
  struct Skew {
    const char* text;
    std::int64_t top_k;
    std::array<float, kExperts> router;  // of each expert; 0: as it is
    int without;                         // experts without a token, at least
  };
  const Skew skews[] = {{"all tokens to one expert", 1, {-1, -1, -1, -1, -1, 1, -1, -1}, 7},
                        {"all to the first experts", 2, {2, 1, -1, -1, -1, -1, -1, -1}, 6},
                        {"all to the last experts", 2, {-1, -1, -1, -1, -1, -1, 1, 2}, 6},
                        {"an expert with none", 2, {0, 0, 0, -1, 0, 0, 0, 0}, 1}};
  for (const Skew& skew : skews) {
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
    for (const nn::SavePolicy& policy : {nn::SavePolicy{}, nn::SavePolicy{Checkpointing::full, true}}) {
      const Experts o = largest(policy);
      const Outcome one = outcome_of_one_rank(whole, o, weights);
      const std::vector<float> counts = counts_of(one.statistics);
      EXPECT_GE(std::count(counts.begin(), counts.begin() + kExperts, 0.0f), skew.without) << skew.text;
      SCOPED_TRACE(skew.text);
      expect_gradients_of(one, on_the_mesh(whole, o, weights), o);
    }
  }
}

Trained trained(const models::ModelDescription& whole, const Experts& o, const testing::Training& training = {}) {
  const auto model = part_of(whole, o);
  plan::LayoutChoices layout = layout_of(o, *model);
  layout.optimizer = optim::make_adamw({.epsilon = 1e-4});
  return testing::train(*model, layout, training);
}

// With active clipping, two micro-batches in flight if weights are delayed. AdamW divides by the size of gradients,
// some of which cancel to rounding noise: a larger epsilon shows the gradients themselves.
void expect_training_of_one_rank(const models::ModelDescription& whole, const Experts& o) {
  const Trained many = trained(whole, o);
  const models::Model one(whole);
  plan::LayoutChoices alone = alone_layout(o, one);
  alone.optimizer = optim::make_adamw({.epsilon = 1e-4});
  const testing::Tensors after = testing::expect_one_ranks_training(one, alone, 2 * o.sequences(), many, o.text());
  EXPECT_LT(testing::difference(many.after, after, "model"), 1e-6) << o.text();
}

const nn::SavePolicy kFull{.checkpointing = Checkpointing::full}, kDelayed{.delay_weight_gradients = true},
    kFullDelayed{.checkpointing = Checkpointing::full, .delay_weight_gradients = true};

TEST(ExpertRanks, TrainLikeOneRank) {
  const models::ModelDescription whole = testing::toy_with_experts(kExperts);
  std::vector<Experts> cases = {largest(kFullDelayed)};
  const std::vector<comm::MeshSizes> meshes = expert_meshes();
  if (!meshes.empty()) cases.push_back({.mesh = meshes.front(), .policy = kDelayed, .micro_batches = 2});
  for (const Experts& o : cases) expect_training_of_one_rank(whole, o);
}

// Tensor ranks have the same experts. Without sequence parallelism they compute the same; with it each routes its own
// rows.
TEST(ExpertRanks, WithTensorRanksTrainLikeOneRank) {
  const int world = the_world->size();
  if (world < 2) GTEST_SKIP() << "needs two tensor ranks";
  const models::ModelDescription whole = testing::toy_with_experts(kExperts);
  for (const bool sequence_parallel : {false, true}) {
    Experts o{.mesh = {.tensor = 2, .shard = world / 2, .expert = world / 2},
              .policy = sequence_parallel ? kFullDelayed : nn::SavePolicy{},
              .micro_batches = 2,
              .sequence_parallel = sequence_parallel};
    expect_training_of_one_rank(whole, o);
    if (world < 8) continue;
    o.mesh = {.tensor = 2, .context = 2, .shard = 2, .expert = 2};
    expect_training_of_one_rank(whole, o);
  }
}

// Four ranks, which have different experts: over shards, over context, or over tensor ranks, which route different rows
// with sequence parallelism. The last two cases have two ranks with the same experts.
TEST(ExpertRanks, OverShardsContextAndTensorRanksTrainLikeOneRank) {
  if (the_world->size() != 4) GTEST_SKIP() << "meshes of four ranks";
  const models::ModelDescription whole = testing::toy_with_experts(kExperts);
  std::vector<Experts> cases(5, {.micro_batches = 2});
  cases[0].mesh = {.shard = 4, .expert = 4};
  cases[1].mesh = {.context = 2, .shard = 2, .expert = 4};
  cases[2].mesh = {.tensor = 2, .shard = 2, .expert = 4, .expert_over_tensor = true};
  cases[3].mesh = {.tensor = 2, .shard = 2, .expert = 2, .expert_over_tensor = true};
  cases[4].mesh = {.tensor = 2, .context = 2, .expert = 2, .expert_over_tensor = true};
  cases[0].policy = cases[2].policy = kFullDelayed;
  cases[0].pieces = cases[2].pieces = 2;
  cases[1].row_bound = 4;  // not exceeded
  for (Experts& o : cases) {
    o.sequence_parallel = o.mesh.tensor > 1;
    expect_training_of_one_rank(whole, o);
  }
}

TEST(ExpertRanks, OverTensorRanksNeedRowsOfTheirOwn) {
  const comm::MeshSizes mesh{.tensor = 2, .shard = 2, .expert = 4, .expert_over_tensor = true};
  models::ModelDescription d = testing::toy_with_experts(kExperts);
  for (models::BlockDescription& block : d.blocks) block.moe->experts_shard = {.index = 0, .count = 4};
  const models::Model model(testing::half_of(std::move(d), 0, {.vocabulary = true}),
                            nn::FlatSpecOf([](const nn::Param& param) { return param.flat; }));
  const Experts o{.mesh = mesh};
  EXPECT_THROW(plan::plan_rank(model, plan::derive(layout_of(o, model), model), step::Purpose::train, 0),
               InternalError);
}

// A bound of the rows that is not exceeded changes the buffers only.
TEST(ExpertRanks, ABoundOfRowsHasTheBitsOfNone) {
  if (the_world->size() == 1) GTEST_SKIP() << "needs several ranks";
  const models::ModelDescription whole = testing::toy_with_experts(kExperts, 4);
  Experts o = largest(kFullDelayed);
  const Trained all = trained(whole, o);
  o.row_bound = 1.3;
  const auto rows = [&](std::optional<double> bound) {
    return nn::TokenExchange::Sizes{.tokens = 2 * testing::kToyLength,
                                    .per_token = 4,
                                    .experts = kExperts,
                                    .local_experts = kExperts / o.mesh.expert,
                                    .row_bound = bound}
        .expert_rows();
  };
  EXPECT_LT(rows(o.row_bound), rows(std::nullopt));
  const Trained bounded = trained(whole, o);
  EXPECT_TRUE(bounded.after == all.after);
  EXPECT_EQ(bounded.losses, all.losses);
}

// What is dropped depends on each rank's tokens, not on where the experts are.
TEST(ExpertRanks, DropTheTokensOfRanksThatHaveAllExperts) {
  const int world = the_world->size();
  if (world == 1) GTEST_SKIP() << "needs several ranks";
  models::ModelDescription whole = testing::toy_with_experts(kExperts);
  for (models::BlockDescription& block : whole.blocks) block.moe->capacity = 0.8;
  Experts o = largest(kDelayed);
  const Outcome many = on_the_mesh(whole, o);
  const Trained apart = trained(whole, o);
  o.mesh = {.shard = world};
  const Outcome together = on_the_mesh(whole, o);
  EXPECT_EQ(counts_of(many.statistics), counts_of(together.statistics));
  EXPECT_EQ(many.statistics.back(), together.statistics.back());
  EXPECT_GT(many.statistics.back(), 0) << "nothing is dropped";
  EXPECT_LT(testing::difference(apart.after, trained(whole, o).after), 1e-6);
}

models::ModelDescription with_bias(models::ModelDescription whole, double rate) {
  for (models::BlockDescription& block : whole.blocks) {
    block.moe->bias = block.moe->router + ".e_score_correction_bias";
    block.moe->bias_rate = rate;
  }
  return whole;
}

// The history of the biases follows from the counts of each step. A skipped step changes none.
TEST(ExpertRanks, TheBiasFollowsTheLoadOfStepsThatCount) {
  const int world = the_world->size();
  const float rate = 0.125f;
  const models::ModelDescription whole = with_bias(testing::toy_with_experts(kExperts), rate);
  std::vector<Experts> cases = {largest()};
  if (world > 1) cases.push_back({.mesh = {.shard = 1, .replicate = world}, .micro_batches = 2});
  for (const Experts& o : cases) {
    const auto model = part_of(whole, o);
    plan::LayoutChoices layout = layout_of(o, *model);
    const auto mesh = rank_mesh(o.mesh);
    const testing::ToySteps steps(*model, layout, mesh->coordinate(), o.sequences() * o.micro_batches);
    const auto device = rank_device({.random_delay_s = 2e-4, .delay_seed = 5});
    engine::Session session(*model, plan::derive(layout, *model), *device, *mesh, {step::Purpose::train}, std::nullopt,
                            {.replay = true});
    session.initialise(3);
    std::vector<float> expected(2 * kExperts);
    for (int i = 0; i < 4; ++i) {
      step::StepInput input = steps.input(i);
      input.record.learning_rate = 0.01f;
      input.skip = i == 1;
      const step::StepOutput output = session.enqueue(step::Purpose::train, input);
      session.synchronize();
      const std::vector<float> counts = counts_of(*output.auxiliary_statistics);
      for (std::size_t layer = 0; layer < 2 && i != 1; ++layer) {
        const auto of_layer = counts.begin() + static_cast<std::ptrdiff_t>(layer * kExperts);
        const double mean = std::accumulate(of_layer, of_layer + kExperts, 0.0) / kExperts;
        for (std::size_t e = 0; e < kExperts; ++e) {
          const double load = counts[layer * kExperts + e];
          expected[layer * kExperts + e] += load < mean ? rate : load > mean ? -rate : 0.0f;
        }
      }
      const testing::Tensors tensors = testing::assembled(session);
      for (std::size_t layer = 0; layer < 2; ++layer) {
        const std::vector<float>& bias =
            tensors.at(cat("model.layers.", layer, ".block_sparse_moe.gate.e_score_correction_bias"));
        const auto of_layer = expected.begin() + static_cast<std::ptrdiff_t>(layer * kExperts);
        EXPECT_EQ(bias, std::vector<float>(of_layer, of_layer + kExperts)) << o.text() << ", step " << i;
      }
    }
    EXPECT_GT(std::ranges::count_if(expected, [](float value) { return value != 0; }), 0);
  }
}

TEST(ExpertRanks, RepeatBitForBit) {
  if (the_world->size() == 1) GTEST_SKIP() << "needs several ranks";
  const models::ModelDescription whole = testing::toy_with_experts(kExperts);
  const Trained first = trained(whole, largest(kDelayed)), again = trained(whole, largest(kDelayed));
  EXPECT_TRUE(first.after == again.after);
  EXPECT_EQ(first.losses, again.losses);
}

// A checkpoint has all experts, whatever ranks they were on.
TEST(ExpertRanks, StatesAreSavedAndLoadedOnOtherMeshes) {
  const int world = the_world->size();
  if (world == 1) GTEST_SKIP() << "one mesh";
  const models::ModelDescription whole = with_bias(testing::toy_with_experts(kExperts), 0.01);
  const TemporaryFolder own;
  const std::string root = the_world->all_gather_strings(own.path("checkpoints")).front();
  std::vector<Experts> all = {largest(), {.mesh = {.shard = world}}};
  all.push_back({.mesh = {.context = 2, .shard = world / 2, .expert = 2}});
  int step = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Experts& to = all[(i + 1) % all.size()];
    const Trained saved = trained(whole, all[i], {.inputs = {0}, .look = [&](engine::Session& session) {
                                                    train::save(session, the_world, {.root = root},
                                                                {.step = ++step, .recipe = "{}", .config = "{}"});
                                                  }});
    checkpoint::Checkpoint checkpoint = checkpoint::Checkpoint::open(cat(root, "/", checkpoint::step_name(step)));
    const auto model = part_of(whole, to);
    const auto mesh = rank_mesh(to.mesh);
    const auto device = rank_device();
    engine::Session session(*model, plan::derive(layout_of(to, *model), *model), *device, *mesh,
                            {step::Purpose::train});
    session.initialise(4);
    EXPECT_FALSE(testing::assembled(session) == saved.after);
    engine::load(session, checkpoint);
    EXPECT_TRUE(testing::assembled(session) == saved.after) << all[i].text() << " to " << to.text();
  }
}

TEST(ExpertRanks, AModelWithOtherExpertsIsRejected) {
  const int world = the_world->size();
  models::ModelDescription description = testing::toy_with_experts(kExperts);
  for (models::BlockDescription& block : description.blocks) block.moe->experts_shard = {.index = 1, .count = 2};
  const models::Model model(description);
  const auto device = rank_device();
  const auto mesh = rank_mesh({.shard = world});
  const plan::LayoutChoices layout = testing::toy_layout({.shard = world}, model);
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
  for (const bool in_flight : {false, true}) {
    const Experts o{.mesh = largest().mesh, .policy = kDelayed, .micro_batches = in_flight ? 2 : 1};
    const Outcome one = outcome_of_one_rank(whole, o);
    const auto model = part_of(whole, o);
    plan::LayoutChoices layout = layout_of(o, *model);
    layout.replace_seams = [](nn::Seams& seams, comm::Mesh& groups) {
      seams.tokens = std::make_shared<RememberingExchange>(groups.expert(), 1);
    };
    const auto mesh = rank_mesh(o.mesh);
    const Outcome many = testing::run(*model, layout, *mesh, o.sequences() * o.micro_batches, 2e-4);
    if (!in_flight) {
      expect_gradients_of(one, many, o);
      continue;
    }
    double difference = 0, norm = 0;
    for (const auto& [name, gradient] : many.gradients) {
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
