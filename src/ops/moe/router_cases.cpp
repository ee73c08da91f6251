#include "ops/moe/router.h"

#include <algorithm>
#include <numeric>

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace router_cases {

using namespace testing;

struct RouterCase {
  std::int64_t tokens, experts, per_token;
  bool normalise = true, masked = false;
  double scale = 1;  // of the logits

  std::string name(const char* op) const {
    return cat(op, " ", tokens, "x", experts, " top ", per_token, normalise ? " normalised" : "",
               masked ? " mask" : "");
  }
  Values logits() const { return random_values(tokens * experts, 1, DType::f32, scale); }
  Values mask() const {
    Values out;
    for (std::int64_t t = 0; t < tokens; ++t) out.push_back(!masked || t % 3 != 1 ? 1 : 0);
    return out;
  }
};

Values row_of(const Values& all, std::int64_t row, std::int64_t columns) {
  return Values(all.begin() + static_cast<std::ptrdiff_t>(row * columns),
                all.begin() + static_cast<std::ptrdiff_t>((row + 1) * columns));
}

double logsumexp(const Values& row) {
  const double largest = *std::ranges::max_element(row);
  double sum = 0;
  for (const double x : row) sum += std::exp(x - largest);
  return largest + std::log(sum);
}

Values softmax(const Values& row) {
  Values out;
  for (const double x : row) out.push_back(std::exp(x - logsumexp(row)));
  return out;
}

struct Chosen {
  Values experts, weights;
};

Chosen choose(const RouterCase& c, const Values& logits) {
  Chosen out;
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    const Values row = row_of(logits, t, c.experts), p = softmax(row);
    std::vector<std::size_t> order(row.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return row[a] > row[b]; });
    double sum = 0;
    for (std::int64_t k = 0; k < c.per_token; ++k) sum += p[order[static_cast<std::size_t>(k)]];
    const bool token = c.mask()[static_cast<std::size_t>(t)] != 0;
    for (std::int64_t k = 0; k < c.per_token; ++k) {
      const std::size_t e = order[static_cast<std::size_t>(k)];
      out.experts.push_back(token ? static_cast<double>(e) : -1);
      out.weights.push_back(token ? p[e] / (c.normalise ? sum : 1) : 0);
    }
  }
  return out;
}

Values statistics_of(const RouterCase& c, const Values& logits, const Values& experts) {
  Values out(static_cast<std::size_t>(router_statistics_size(c.experts)));
  const auto n = static_cast<std::size_t>(c.experts);
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    const Values row = row_of(logits, t, c.experts), p = softmax(row), chosen = row_of(experts, t, c.per_token);
    if (chosen[0] < 0) continue;
    for (const double e : chosen) out[static_cast<std::size_t>(e)] += 1;
    for (std::size_t e = 0; e < n; ++e) out[n + e] += p[e];
    out[2 * n] += std::pow(logsumexp(row), 2);
    out[2 * n + 1] += 1;
  }
  return out;
}

const std::vector<RouterCase> kRouterCases = {
    {1, 1, 1},
    {5, 4, 2},
    {40, 8, 2, true, true, 3},
    {33, 8, 8, false, true},
    {700, 16, 4, false},
    {9, 130, 6, true, true},
};

TEST(Router, ChoosesTheLargestAndWeighsThem) {
  for (const RouterCase& c : kRouterCases) {
    const Chosen expected = choose(c, c.logits());
    check_case({c.name("router_top_k"),
                [&](World& world) -> std::vector<Values> {
                  RouterTopK args{.logits = world.in(DType::f32, {c.tokens, c.experts}, c.logits()),
                                  .experts = world.out(DType::i32, {c.tokens, c.per_token}),
                                  .weights = world.out(DType::f32, {c.tokens, c.per_token}),
                                  .normalise = c.normalise};
                  if (c.masked) args.mask = world.in(DType::i32, {c.tokens}, c.mask());
                  router_top_k(world.stream(), args);
                  return {world.values(args.experts), world.values(args.weights)};
                },
                {expected.experts, expected.weights}});
  }
}

TEST(Router, EqualLogitsGoToTheLowerIndex) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DeviceKind device : devices()) {
    World world(device, 1);
    const RouterTopK args{
        .logits = world.in(DType::f32, {3, 5}, {1, 1, 1, 1, 1, 0, 2, 1, 2, 1, nan, nan, nan, nan, nan}),
        .experts = world.out(DType::i32, {3, 3}),
        .weights = world.out(DType::f32, {3, 3})};
    if (device == DeviceKind::cuda) continue;
    router_top_k(world.stream(), args);
    EXPECT_EQ(world.values(args.experts), (Values{0, 1, 2, 1, 3, 2, 0, 1, 2}));
  }
}

TEST(Router, StatisticsAreThoseOfTokens) {
  for (const RouterCase& c : kRouterCases) {
    const Values logits = c.logits(), experts = choose(c, logits).experts;
    check_case({c.name("router_statistics"),
                [&](World& world) -> std::vector<Values> {
                  const RouterStatistics args{
                      .logits = world.in(DType::f32, {c.tokens, c.experts}, logits),
                      .experts = world.in(DType::i32, {c.tokens, c.per_token}, experts),
                      .statistics = world.out(DType::f32, {router_statistics_size(c.experts)}),
                      .workspace = world.workspace(router_statistics_workspace(c.tokens, c.experts))};
                  router_statistics(world.stream(), args);
                  return {world.values(args.statistics)};
                },
                {statistics_of(c, logits, experts)}});
  }
}

// loss and factors of statistics [layers, 2 experts + 2]
double loss_of(const Values& statistics, std::int64_t layers, std::int64_t experts, double balance_coefficient,
               double z_coefficient) {
  const std::int64_t size = router_statistics_size(experts);
  Values sums(static_cast<std::size_t>(size));
  for (std::int64_t l = 0; l < layers; ++l) sums = plus(sums, row_of(statistics, l, size));
  const auto n = static_cast<std::size_t>(experts);
  double balance = 0;
  for (std::size_t e = 0; e < n; ++e) balance += sums[e] / sums[2 * n + 1] * sums[n + e] / sums[2 * n + 1];
  return balance_coefficient * static_cast<double>(experts) * balance + z_coefficient * sums[2 * n] / sums[2 * n + 1];
}

TEST(Router, LossAndItsFactorsAreThoseOfAllLayers) {
  const RouterCase c{50, 6, 2, true, true};
  const std::int64_t layers = 3, size = router_statistics_size(c.experts);
  Values statistics;
  for (std::uint64_t l = 0; l < 3; ++l) {
    const Values logits = random_values(c.tokens * c.experts, 10 + l);
    for (const double s : statistics_of(c, logits, choose(c, logits).experts))
      statistics.push_back(rounded(s, DType::f32));
  }
  const double loss = loss_of(statistics, layers, c.experts, 0.3, 0.07);
  const Values slopes = numeric_gradient([&] { return loss_of(statistics, layers, c.experts, 0.3, 0.07); }, statistics);
  for (const bool accumulate : {false, true}) {
    for (const double scale : {0.0, 8.0}) {  // 0: none
      const double share = 0.25;
      Values factors;
      for (std::int64_t l = 0; l < layers; ++l) {
        const Values slope = row_of(slopes, l, size);
        for (std::int64_t e = c.experts; e <= 2 * c.experts; ++e) {
          factors.push_back(slope[static_cast<std::size_t>(e)] * share * (scale != 0 ? scale : 1));
        }
      }
      check_case({cat("router_loss ", accumulate, " ", scale),
                  [&](World& world) -> std::vector<Values> {
                    RouterLoss args{
                        .statistics = world.in(DType::f32, {layers, size}, statistics),
                        .factors = world.out(DType::f32, {layers, router_factors_size(c.experts)}),
                        .loss = accumulate ? world.in_out(DType::f32, {1}, {0.5}) : world.out(DType::f32, {1}),
                        .share = share,
                        .balance_coefficient = 0.3,
                        .z_coefficient = 0.07,
                        .accumulate = accumulate};
                    if (scale != 0) args.scale = world.in(DType::f32, {1}, {scale});
                    router_loss(world.stream(), args);
                    return {world.values(args.factors), world.values(args.loss)};
                  },
                  {factors, {share * loss + (accumulate ? 0.5 : 0)}}});
    }
  }
  World world(DeviceKind::cpu, 1);  // no token at all
  const RouterLoss none{.statistics = world.in(DType::f32, {1, size}, Values(static_cast<std::size_t>(size))),
                        .factors = world.out(DType::f32, {1, router_factors_size(c.experts)}),
                        .loss = world.out(DType::f32, {1}),
                        .balance_coefficient = 1,
                        .z_coefficient = 1};
  router_loss(world.stream(), none);
  EXPECT_EQ(world.values(none.loss), Values{0});
  EXPECT_EQ(world.values(none.factors), Values(7));
}

TEST(Router, GradientAgreesWithFiniteDifferences) {
  for (const RouterCase& c : {RouterCase{7, 4, 2}, {6, 5, 3, false, true}, {9, 8, 2, true, true}, {4, 3, 1, false}}) {
    for (const bool with_factors : {false, true}) {
      Values logits = c.logits();
      const Chosen chosen = choose(c, logits);
      Values weights;
      for (const double w : chosen.weights) weights.push_back(rounded(w, DType::f32));
      const Values dweights = random_values(c.tokens * c.per_token, 2), factors = random_values(c.experts + 1, 3);
      const auto loss = [&] {
        double sum = 0;
        for (std::int64_t t = 0; t < c.tokens; ++t) {
          if (c.mask()[static_cast<std::size_t>(t)] == 0) continue;
          const Values row = row_of(logits, t, c.experts), p = softmax(row);
          const Values of = row_of(chosen.experts, t, c.per_token), dw = row_of(dweights, t, c.per_token);
          double total = c.normalise ? 0 : 1;
          for (const double e : of) total += c.normalise ? p[static_cast<std::size_t>(e)] : 0;
          for (std::size_t k = 0; k < of.size(); ++k) sum += dw[k] * p[static_cast<std::size_t>(of[k])] / total;
          for (std::size_t e = 0; with_factors && e < p.size(); ++e) sum += factors[e] * p[e];
          if (with_factors) sum += factors[p.size()] * std::pow(logsumexp(row), 2);
        }
        return sum;
      };
      const Values expected = numeric_gradient(loss, logits);
      check_case({c.name("router_top_k_backward"),
                  [&](World& world) -> std::vector<Values> {
                    RouterTopKBackward args{.logits = world.in(DType::f32, {c.tokens, c.experts}, logits),
                                            .experts = world.in(DType::i32, {c.tokens, c.per_token}, chosen.experts),
                                            .weights = world.in(DType::f32, {c.tokens, c.per_token}, weights),
                                            .dweights = world.in(DType::f32, {c.tokens, c.per_token}, dweights),
                                            .dlogits = world.out(DType::f32, {c.tokens, c.experts}),
                                            .normalise = c.normalise};
                    if (with_factors) args.factors = world.in(DType::f32, {c.experts + 1}, factors);
                    router_top_k_backward(world.stream(), args);
                    return {world.values(args.dlogits)};
                  },
                  {expected},
                  1e-5});
    }
  }
}

TEST(Router, RejectsWrongArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView logits = world.in(DType::f32, {4, 3}, Values(12)), experts = world.out(DType::i32, {4, 2}),
                   weights = world.out(DType::f32, {4, 2});
  expect_rejected([&] { router_top_k(world.stream(), {.logits = logits, .experts = experts}); }, "weights is missing");
  expect_rejected(
      [&] {
        router_top_k(world.stream(), {.logits = logits, .experts = world.out(DType::i32, {4, 4})});
      },
      "4 of 3 experts");
  expect_rejected(
      [&] {
        router_top_k(world.stream(), {.logits = logits, .mask = experts, .experts = experts, .weights = weights});
      },
      "mask has shape [4, 2], not [4]");
  expect_rejected(
      [&] {
        router_statistics(world.stream(),
                          {.logits = logits, .experts = experts, .statistics = world.out(DType::f32, {8})});
      },
      "workspace is missing");
  expect_rejected([&] { router_loss(world.stream(), {.statistics = weights}); }, "statistics [4, 2]");
}

}  // namespace router_cases
}  // namespace hawser::ops
