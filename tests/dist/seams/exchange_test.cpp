// TokenExchange over two ranks with four experts, and TensorReduce.
#include <gtest/gtest.h>

#include <cmath>

#include "base/philox.h"
#include "nn/blocks/embedding_and_head.h"
#include "ops/moe/dispatch.h"
#include "parallel/tensor/tensor_sums.h"
#include "seams.h"
#include "support/pieces_exchange.h"

namespace hawser::testing {
namespace exchange_test {

using nn::LayerContext;
using nn::testing::get;
using nn::testing::normals;
using nn::testing::TestContext;

constexpr std::int64_t kExperts = 4, kLocal = 2;

// Rows of a rank. Every rank can compute them for all ranks.
std::vector<double> rows_for(int rank, std::int64_t rows) {
  return normals("rows of " + std::to_string(rank), rows * 3);
}

// No row is dropped: the rows of an expert are those of rank 0, then those of rank 1, then zeros.
void expect_rows_of_experts(const nn::TokenExchange::Routing& routing, int piece, const TensorView& there, int rank,
                            const std::vector<std::vector<double>>& chosen) {
  const auto experts = static_cast<std::size_t>(routing.sizes.piece_experts());
  const std::vector<double> arrived = get(there), offsets = get(routing.piece_offsets(piece)),
                            valid = get(routing.piece_rows(routing.token_rows, piece));
  EXPECT_EQ(offsets[0], 0);
  for (std::size_t i = 0; i < experts; ++i) {
    const auto begin = static_cast<std::size_t>(offsets[i]), end = static_cast<std::size_t>(offsets[i + 1]);
    const auto expert =
        static_cast<double>(rank * kLocal) + static_cast<double>(static_cast<std::size_t>(piece) * experts + i);
    std::size_t row = begin;
    for (std::size_t r = 0; r < 2; ++r) {
      const std::vector<double> all = rows_for(static_cast<int>(r), static_cast<std::int64_t>(chosen[r].size()));
      for (std::size_t t = 0; t < chosen[r].size(); ++t) {
        if (chosen[r][t] != expert) continue;
        ASSERT_LT(row, end);
        EXPECT_EQ(valid[row], static_cast<double>(row));
        for (std::size_t c = 0; c < 3; ++c) EXPECT_EQ(arrived[row * 3 + c], static_cast<float>(all[t * 3 + c]));
        ++row;
      }
    }
    EXPECT_EQ(end, begin + static_cast<std::size_t>(round_up(static_cast<std::int64_t>(row - begin), ops::kGroupRows)));
    for (; row < end; ++row) {
      EXPECT_EQ(valid[row], ops::kNoRow);
      for (std::size_t c = 0; c < 3; ++c) EXPECT_EQ(arrived[row * 3 + c], 0);
    }
  }
  for (auto row = static_cast<std::size_t>(offsets[experts]); row < valid.size(); ++row) {
    EXPECT_EQ(valid[row], ops::kNoRow);
    EXPECT_TRUE(std::isnan(arrived[row * 3])) << "a row that nothing may read";
  }
}

// `chosen`: by rank, the expert of each token.
void expect_there_and_back(int pieces, const std::vector<std::vector<double>>& chosen,
                           std::optional<double> row_bound = {}, bool refused = false) {
  const auto device = make_cpu_device({.random_delay_s = 0.0005});
  TestContext ctx(*device, DType::f32);
  const auto rank = static_cast<std::size_t>(pair().index());
  ctx.seams_.tokens = std::make_shared<PiecesExchange>(pair(), pieces);
  nn::TokenExchange& seam = *ctx.seams_.tokens;
  const auto tokens = static_cast<std::int64_t>(chosen[rank].size());
  nn::TokenExchange::Sizes sizes{
      .tokens = tokens, .per_token = 1, .experts = kExperts, .local_experts = kLocal, .row_bound = row_bound};
  sizes.options = seam.options(sizes);
  ctx.refusal_ = ctx.make(DType::f32, {1}, {0.0});
  const std::int64_t rows = sizes.rows();
  // The weights, as they are: each is of one token.
  const std::vector<double> tags = rows_for(static_cast<int>(rank) + 2, tokens);
  const nn::TokenExchange::Routing routing{
      .sizes = sizes,
      .experts = ctx.make(DType::i32, {tokens, 1}, chosen[rank]),
      .weights = ctx.make(DType::f32, {tokens, 1}, {tags.begin(), tags.begin() + tokens}),
      .rows = ctx.make(DType::i32, {tokens, 1}),
      .offsets = ctx.make(DType::i32, {kExperts + 1}),
      .assignments = ctx.make(DType::i32, {rows}),
      .counts = ctx.make(DType::i32, {2, kExperts}),
      .expert_offsets = ctx.make(DType::i32, {pieces, sizes.piece_experts() + 1}),
      .token_rows = ctx.make(DType::i32, {sizes.expert_rows(), 1}),
      .state = ctx.make(DType::i32, {sizes.options.state})};
  ops::expert_plan(ctx.compute(), {.experts = routing.experts,
                                   .offsets = routing.offsets,
                                   .rows = routing.rows,
                                   .assignments = routing.assignments});
  seam.route(ctx, routing);
  using Weights = nn::TokenExchange::Weights;
  const TensorView mine = ctx.make(DType::f32, {tokens, 3}, rows_for(static_cast<int>(rank), tokens));
  const auto arriving = seam.dispatch(ctx, routing, mine, Weights::sent);
  const auto returning = seam.combine(ctx, routing, DType::f32, 3, Weights::sent);
  std::vector<TensorView> there;
  for (int p = 0; p < pieces; ++p) {
    const nn::TokenExchange::PieceRows arrived = arriving->wait(p), target = returning->target(p);
    there.push_back(arrived.rows);
    // Each expert computes something different: expert e multiplies by e + 1.
    ctx.compute().launch({.name = "experts", .kind = OpKind::host}, [=] {
      const auto* const offsets = routing.piece_offsets(p).data<std::int32_t>();
      for (std::int64_t row = 0; row < offsets[sizes.piece_experts()]; ++row) {
        const std::int64_t e = static_cast<std::int64_t>(rank) * kLocal + p * sizes.piece_experts() +
                               (sizes.piece_experts() == 1 || row < offsets[1] ? 0 : 1);
        for (int c = 0; c < 3; ++c) {
          target.rows.data<float>()[row * 3 + c] = arrived.rows.data<float>()[row * 3 + c] * static_cast<float>(e + 1);
        }
        target.weights.data<float>()[row] = arrived.weights.data<float>()[row];
      }
    });
    returning->written(p);
  }
  const TensorView home = ctx.make(DType::f32, {tokens, 3}), tag_home = ctx.make(DType::f32, {tokens, 1});
  returning->finish_weights(tag_home);
  returning->finish({}, home);
  ctx.finish();
  EXPECT_EQ(get(ctx.refusal_)[0], refused ? static_cast<double>(nn::Refusal::expert_rows) : 0.0);
  if (refused) {
    EXPECT_EQ(get(home), std::vector<double>(static_cast<std::size_t>(tokens * 3)));
    EXPECT_EQ(get(routing.counts), std::vector<double>(2 * kExperts));
    return;
  }
  EXPECT_EQ(get(tag_home), get(routing.weights));

  for (int p = 0; p < pieces; ++p) {
    expect_rows_of_experts(routing, p, there[static_cast<std::size_t>(p)], static_cast<int>(rank), chosen);
  }
  // Each row returns to its token.
  std::vector<double> returned = rows_for(static_cast<int>(rank), tokens);
  for (std::size_t i = 0; i < returned.size(); ++i) returned[i] *= chosen[rank][i / 3] + 1;
  EXPECT_LT(nn::testing::distance(get(home), returned), 1e-6);
}

// Random experts of tokens: expert e is chosen with probability shares[e] / their sum.
std::vector<double> choices(std::uint64_t seed, std::int64_t tokens, const std::vector<int>& shares) {
  std::vector<double> experts;
  for (std::size_t e = 0; e < shares.size(); ++e) experts.insert(experts.end(), static_cast<std::size_t>(shares[e]), e);
  const RandomStream random(seed, 0);
  std::vector<double> out;
  for (std::int64_t t = 0; t < tokens; ++t) {
    out.push_back(experts[random.below(experts.size(), static_cast<std::uint64_t>(t))]);
  }
  return out;
}

TEST(TokenExchange, KeepsAllRowsAndReturnsThem) {
  const auto both = [](std::int64_t tokens, const std::vector<int>& first, const std::vector<int>& second) {
    return std::vector<std::vector<double>>{choices(1, tokens, first), choices(2, tokens, second)};
  };
  for (const int pieces : {1, 2}) {
    expect_there_and_back(pieces, both(20, {1, 1, 1, 1}, {1, 1, 1, 1}));
    expect_there_and_back(pieces, both(300, {1, 9, 0, 10}, {7, 0, 12, 1}));  // more than a group's block of rows
    expect_there_and_back(pieces, both(20, {1, 0, 0, 0}, {1, 0, 0, 0}));     // all to one expert
    expect_there_and_back(pieces, both(20, {0, 0, 0, 1}, {0, 1, 0, 0}));     // all to the other rank
  }
}

// The first rank's buffer has 640 rows, with the padding of its two experts.
TEST(TokenExchange, RefusesOneRowBeyondTheBound) {
  const auto chosen = [](std::size_t first, std::size_t second) {
    std::vector<double> of_second(first, 0.0);
    of_second.resize(first + second, 1.0);
    of_second.resize(300, 2.0);
    return std::vector<std::vector<double>>{std::vector<double>(300, 0.0), of_second};
  };
  expect_there_and_back(1, chosen(212, 1), 1.0);
  expect_there_and_back(1, chosen(213, 1), 1.0, true);
  expect_there_and_back(1, chosen(213, 1), 1.3);
  expect_there_and_back(2, chosen(84, 1), 1.0);  // a piece has 384 rows
  expect_there_and_back(2, chosen(85, 1), 1.0, true);
}

TEST(TensorReduce, Sum) {
  const auto device = make_cpu_device();
  TestContext ctx(*device, DType::f32);
  ctx.seams_.tensor_reduce = std::make_shared<parallel::TensorSums>(pair());
  const std::vector<double> values[] = {{1.5, -2.0, 3.0}, {0.25, -1.0, 3.5}};
  const auto& mine = values[static_cast<std::size_t>(pair().index())];
  const TensorView sum = ctx.make(DType::f32, {3}, mine);
  ctx.seams().tensor_reduce->sum(ctx, sum);
  ctx.finish();
  EXPECT_EQ(get(sum), (std::vector<double>{1.75, -3.0, 6.5}));
}

// The logits of generation, with a bias and soft-capped, from columns 0 to 8 and 9 to 16 of 17; the last rank has one
// of padding.
TEST(TensorReduce, GathersTheLogitsOfASlicedVocabulary) {
  constexpr std::int64_t kWidth = 12, kRows = 5, kVocabulary = 17, kOwn = 9;
  const auto device = make_cpu_device({.random_delay_s = 2e-4});
  const std::vector<double> x = nn::testing::normals("x", kRows * kWidth), norm = nn::testing::normals("norm", kWidth);
  std::vector<double> weight = nn::testing::normals("weight", kVocabulary * kWidth),
                      bias = nn::testing::normals("bias", kVocabulary);
  const auto logits_of = [&](nn::HeadConfig config, const std::vector<double>& own, const std::vector<double>& own_bias,
                             bool sliced) {
    config.width = kWidth;
    config.softcap = 3;
    config.bias = true;
    config.norm = "norm";
    config.output = "head";
    const nn::HeadLayer head(config);
    TestContext ctx(*device, DType::f32);
    if (sliced) ctx.seams_.tensor_reduce = std::make_shared<parallel::TensorSums>(pair());
    ctx.weights_ = {ctx.make(DType::f32, {kWidth}, norm), ctx.make(DType::f32, {config.vocabulary, kWidth}, own),
                    ctx.make(DType::f32, {config.vocabulary}, own_bias)};
    const TensorView logits = ctx.make(DType::f32, {kRows, kVocabulary}, std::vector<double>(kRows * kVocabulary));
    head.logits(ctx, ctx.make(DType::f32, {kRows, kWidth}, x), logits);
    ctx.finish();
    return get(logits);
  };
  const std::vector<double> expected = logits_of({.vocabulary = kVocabulary}, weight, bias, false);
  weight.resize(2 * kOwn * kWidth);
  bias.resize(2 * kOwn);
  const std::int64_t begin = pair().index() * kOwn;
  const std::vector<double> own(weight.begin() + begin * kWidth, weight.begin() + (begin + kOwn) * kWidth),
      own_bias(bias.begin() + begin, bias.begin() + begin + kOwn);
  const auto got =
      logits_of({.vocabulary = kOwn, .vocabulary_slice = {.begin = begin, .total = kVocabulary}}, own, own_bias, true);
  EXPECT_LT(nn::testing::distance(got, expected), 1e-6);
}

}  // namespace exchange_test
}  // namespace hawser::testing
