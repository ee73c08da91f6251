// Experts over two nodes of two ranks: one row for each (token, node) crosses the boundary, and one returns, which is
// the sum of the node's experts.
#include <atomic>
#include <set>

#include "base/philox.h"
#include "experts_case.h"
#include "nn/testing/block_reference.h"
#include "ops/moe/dispatch.h"

namespace hawser {
namespace expert_nodes_test {

using nn::TokenExchange;
using testing::Experts;
using testing::kExperts;
using testing::Outcome;
using testing::Weights;

const comm::MeshSizes kNodes{.shard = 4, .expert = 4, .expert_node = 2};

// Top-2 and top-3 in turn, of one or several micro-batches: with delayed weights, two of them are in flight.
TEST(ExpertNodes, GradientsAreThoseOfOneRankUnderEveryPolicy) {
  if (the_world->size() != 4) GTEST_SKIP() << "two nodes of two ranks";
  std::map<std::pair<std::int64_t, int>, Outcome> one;  // by experts of a token and micro-batches
  int turn = 0;
  for (const nn::SavePolicy& policy : nn::testing::all_policies()) {
    const std::int64_t top_k = 2 + turn % 2;
    const Experts o{.mesh = kNodes,
                    .policy = policy,
                    .micro_batches = policy.delay_weight_gradients || turn % 3 == 0 ? 2 : 1,
                    .pieces = 1 + turn / 2 % 2};
    const models::ModelDescription whole = testing::toy_with_experts(kExperts, top_k);
    const std::pair key(top_k, o.micro_batches);
    if (!one.contains(key)) one.emplace(key, testing::outcome_of_one_rank(whole, o));
    SCOPED_TRACE(cat("top ", top_k));
    testing::expect_gradients_of(one.at(key), testing::on_the_mesh(whole, o), o);
    ++turn;
  }
}

// The logits of tokens are about the same with a large bias of the norm, so that weights of the router decide.
TEST(ExpertNodes, SkewsHaveTheGradientsOfOneRank) {
  if (the_world->size() != 4) GTEST_SKIP() << "two nodes of two ranks";
  struct Skew {
    const char* text;
    std::int64_t top_k;
    std::array<float, kExperts> router;  // of each expert
    int without;                         // experts without a token
  };
  const Skew skews[] = {{"all to one expert", 1, {-1, -1, -1, -1, -1, 1, -1, -1}, 7},
                        {"all to one rank", 2, {2, 1, -1, -1, -1, -1, -1, -1}, 6},
                        {"all but one rank", 3, {-1, 2, 1.5, -1, -1, 1, -1, -1}, 5}};
  for (const Skew& skew : skews) {
    models::ModelDescription whole = testing::toy_with_experts(kExperts, skew.top_k);
    for (models::BlockDescription& block : whole.blocks) {
      block.moe->normalise_top_k = skew.top_k > 1;
      block.moe->norm_config = {.kind = nn::NormKind::layer, .bias = true};
    }
    const Weights weights = [&](const std::string& name, std::int64_t element) {
      if (name.ends_with("post_attention_layernorm.bias")) return 2.0f;
      if (!name.ends_with("block_sparse_moe.gate.weight")) return NAN;
      return skew.router[static_cast<std::size_t>(element / 24)] / 8;
    };
    const Experts o{.mesh = kNodes, .policy = {Checkpointing::full, true}, .micro_batches = 2, .pieces = 2};
    const Outcome one = testing::outcome_of_one_rank(whole, o, weights);
    const std::vector<float> counts = testing::counts_of(one.statistics);
    EXPECT_EQ(std::count(counts.begin(), counts.begin() + kExperts, 0.0f), skew.without) << skew.text;
    SCOPED_TRACE(skew.text);
    testing::expect_gradients_of(one, testing::on_the_mesh(whole, o, weights), o);
  }
}

// Rows that cross the boundary, of all calls on this rank, and of each routing what one crossing of its rows would be.
struct Crossings {
  std::atomic<std::int64_t> rows = 0, assignments = 0, pairs = 0;
};

// Counts on the device what the router has decided and what is sent.
class CountingNodes : public testing::TwoLevelExchange {
 public:
  CountingNodes(comm::Mesh& mesh, int pieces, Crossings& counts)
      : TwoLevelExchange(mesh, pieces, false,
                         [&counts, &nodes = mesh.expert_nodes()](const std::int32_t* rows) {
                           for (int node = 0; node < nodes.size(); ++node) {
                             if (node != nodes.index()) counts.rows += rows[node];
                           }
                         }),
        counts_(counts),
        per_node_(mesh.expert_node().size()),
        own_(mesh.expert_nodes().index()) {}
  void route(nn::LayerContext& ctx, const Routing& r) override {
    TwoLevelExchange::route(ctx, r);
    ctx.compute().launch(
        {.name = "count_routing", .kind = OpKind::host, .accesses = {reads(r.experts), reads(r.rows)}}, [=, this] {
          std::set<std::pair<std::int64_t, std::int64_t>> pairs;
          for (std::int64_t a = 0; a < r.rows.elements(); ++a) {
            if (r.rows.data<std::int32_t>()[a] == ops::kNoRow) continue;
            const std::int64_t node = r.experts.data<std::int32_t>()[a] / r.sizes.local_experts / per_node_;
            if (node == own_) continue;
            ++counts_.assignments;
            pairs.emplace(a / r.sizes.per_token, node);
          }
          counts_.pairs += static_cast<std::int64_t>(pairs.size());
        });
  }

 private:
  Crossings& counts_;
  std::int64_t per_node_, own_;
};

// Of a step's forward and backward, with two pieces of experts. The values that return with rows, gradients of weights,
// cross beside them.
TEST(ExpertNodes, ATokensRowCrossesOnceForEachNode) {
  if (the_world->size() != 4) GTEST_SKIP() << "two nodes of two ranks";
  for (const std::int64_t top_k : {2, 3}) {
    for (const bool again : {false, true}) {
      const Experts o{.mesh = kNodes,
                      .policy = {.checkpointing = again ? Checkpointing::full : Checkpointing::none},
                      .micro_batches = 2,
                      .pieces = 2};
      const auto model = testing::part_of(testing::toy_with_experts(kExperts, top_k), o);
      Crossings mine;
      plan::Layout layout = testing::layout_of(o, *model);
      layout.replace_seams = [&](nn::Seams& seams, comm::Mesh& groups) {
        seams.tokens = std::make_shared<CountingNodes>(groups, o.pieces, mine);
      };
      const auto mesh = rank_mesh(o.mesh);
      testing::run(*model, layout, *mesh, o.sequences() * o.micro_batches, 0);
      std::array<std::int64_t, 3> all = {};
      for (const std::string& text :
           the_world->all_gather_strings(cat(mine.rows.load(), " ", mine.pairs.load(), " ", mine.assignments.load()))) {
        std::istringstream theirs(text);
        for (std::int64_t& sum : all) {
          std::int64_t part = 0;
          theirs >> part;
          sum += part;
        }
      }
      const auto [rows, pairs, assignments] = all;
      // There and back in forward; in backward the same, the values of rows, and a dispatch for each of two gradients
      // of weights.
      EXPECT_EQ(rows, (again ? 8 : 7) * pairs) << "top " << top_k;
      EXPECT_GT(pairs, 0);
      EXPECT_LT(pairs, assignments);
    }
  }
}

// Rows of more tokens than a group's block, to three experts of eight each, under each use of the weights.
TEST(ExpertNodes, RowsReturnAsSumsOfNodes) {
  if (the_world->size() != 4) GTEST_SKIP() << "two nodes of two ranks";
  constexpr std::int64_t kTokens = 150, kPerToken = 3, kWidth = 5;
  const auto mesh = rank_mesh(kNodes);
  const auto device = rank_device({.random_delay_s = 2e-4});
  nn::testing::TestContext ctx(*device, DType::f32);
  const std::int64_t rank = mesh->expert().index();
  testing::TwoLevelExchange seam(*mesh, 2);
  TokenExchange::Sizes sizes{.tokens = kTokens, .per_token = kPerToken, .experts = kExperts, .local_experts = 2};
  sizes.options = seam.options(sizes);
  // Each third token has experts that follow each other, so that some are of one rank.
  const RandomStream random(7, static_cast<std::uint64_t>(rank));
  std::vector<double> experts, weights;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    const auto first = static_cast<std::int64_t>(random.below(kExperts, static_cast<std::uint64_t>(t)));
    for (std::int64_t k = 0; k < kPerToken; ++k) {
      experts.push_back(static_cast<double>((first + k * (1 + t % 3)) % kExperts));
      weights.push_back(1.0 / static_cast<double>(2 + (t + k) % 5));
    }
  }
  const TokenExchange::Routing r{.sizes = sizes,
                                 .experts = ctx.make(DType::i32, {kTokens, kPerToken}, experts),
                                 .weights = ctx.make(DType::f32, {kTokens, kPerToken}, weights),
                                 .rows = ctx.make(DType::i32, {kTokens, kPerToken}),
                                 .offsets = ctx.make(DType::i32, {kExperts + 1}),
                                 .assignments = ctx.make(DType::i32, {sizes.rows()}),
                                 .counts = ctx.make(DType::i32, {2, kExperts}),
                                 .expert_offsets = ctx.make(DType::i32, {2, 2}),
                                 .token_rows = ctx.make(DType::i32, {sizes.expert_rows(), 1}),
                                 .state = ctx.make(DType::i32, {sizes.state()})};
  ops::expert_plan(ctx.compute(),
                   {.experts = r.experts, .offsets = r.offsets, .rows = r.rows, .assignments = r.assignments});
  seam.route(ctx, r);
  const std::vector<double> x = nn::testing::normals(cat("x ", rank), kTokens * kWidth);
  const TensorView tokens = ctx.make(DType::f32, {kTokens, kWidth}, x);
  const TensorView sums = ctx.make(DType::f32, {kTokens, kWidth}), values = ctx.make(DType::f32, {kTokens, kPerToken});
  // Expert e multiplies by e + 1, and returns 10 times a row's weight.
  const auto exchange = [&](TokenExchange::Weights there, TokenExchange::Weights back) {
    const auto arriving = seam.dispatch(ctx, r, tokens, there);
    const auto returning = seam.combine(ctx, r, DType::f32, kWidth, back);
    for (int p = 0; p < 2; ++p) {
      const TokenExchange::PieceRows from = arriving->wait(p), to = returning->target(p);
      ctx.compute().launch({.name = "experts", .kind = OpKind::host}, [=] {
        const std::int64_t used = r.piece_offsets(p).data<std::int32_t>()[1];
        for (std::int64_t i = 0; i < used * kWidth; ++i) {
          to.rows.data<float>()[i] = from.rows.data<float>()[i] * static_cast<float>(2 * rank + p + 1);
        }
        if (to.weights.empty()) return;
        for (std::int64_t i = 0; i < used; ++i) to.weights.data<float>()[i] = 10 * from.weights.data<float>()[i];
      });
      returning->written(p);
    }
    if (back == TokenExchange::Weights::sent) returning->finish_weights(values);
    returning->finish({}, sums);
    ctx.finish();
    return nn::testing::get(sums);
  };
  const auto expected = [&](bool weighted) {
    std::vector<double> y(static_cast<std::size_t>(kTokens * kWidth));
    for (std::size_t i = 0; i < y.size(); ++i) {
      for (std::size_t a = i / kWidth * kPerToken; a < (i / kWidth + 1) * kPerToken; ++a) {
        y[i] += (weighted ? weights[a] : 1) * (experts[a] + 1) * x[i];
      }
    }
    return y;
  };
  using W = TokenExchange::Weights;
  EXPECT_LT(nn::testing::distance(exchange(W::none, W::applied), expected(true)), 1e-6);
  EXPECT_LT(nn::testing::distance(exchange(W::applied, W::none), expected(true)), 1e-6);
  EXPECT_LT(nn::testing::distance(exchange(W::sent, W::sent), expected(false)), 1e-6);
  const std::vector<double> got = nn::testing::get(values);
  for (std::size_t a = 0; a < got.size(); ++a) EXPECT_EQ(got[a], 10 * static_cast<float>(weights[a])) << a;
}

}  // namespace expert_nodes_test
}  // namespace hawser
