#include "ops/adafactor/adafactor.h"

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace adafactor_cases {

using namespace testing;

// Elements [first, first + n) of a matrix.
struct Range {
  std::int64_t columns, first, n;
  std::int64_t rows() const { return (first + n - 1) / columns - first / columns + 1; }
};
constexpr Range kRanges[] = {{7, 0, 35}, {7, 3, 30}, {1, 0, 5}, {300, 1000, 9000}, {5000, 0, 5000}};
constexpr double kCoefficient = 0.5;

TEST(Adafactor, HyperFollowsTheStep) {
  for (const bool relative : {false, true}) {
    for (const int step : {0, 1, 7, 1000}) {
      const double n = std::max(1, step), rate = static_cast<float>(0.25);
      check_case({cat("adafactor_hyper ", step, relative ? " relative" : ""),
                  [&](World& world) -> std::vector<Values> {
                    const AdafactorHyper args{.learning_rate = world.in(DType::f32, {1}, {rate}),
                                              .step = world.in(DType::i32, {1}, {static_cast<double>(step)}),
                                              .hyper = world.out(DType::f32, {2}),
                                              .relative_step = relative};
                    adafactor_hyper(world.stream(), args);
                    return {world.values(args.hyper)};
                  },
                  {{relative ? std::min(rate, 1 / std::sqrt(n)) : rate, 1 - std::pow(n, -0.8)}},
                  1e-6});
    }
  }
}

TEST(Adafactor, AddsTheSquaresOfRowsAndColumns) {
  for (const Range& range : kRanges) {
    const Values gradient = random_values(range.n, 1), rows_before = random_values(range.rows(), 2),
                 columns_before = random_values(range.columns, 3);
    Values rows = rows_before, columns = columns_before;
    for (std::int64_t i = 0; i < range.n; ++i) {
      const double g = gradient[static_cast<std::size_t>(i)] * kCoefficient;
      const std::int64_t e = range.first + i;
      rows[static_cast<std::size_t>(e / range.columns - range.first / range.columns)] += g * g;
      columns[static_cast<std::size_t>(e % range.columns)] += g * g;
    }
    check_case({cat("adafactor_sums ", range.columns, " from ", range.first),
                [&](World& world) -> std::vector<Values> {
                  const AdafactorSums args{.gradient = world.in(DType::f32, {range.n}, gradient),
                                           .coefficient = world.in(DType::f32, {1}, {kCoefficient}),
                                           .row_sums = world.in_out(DType::f32, {range.rows()}, rows_before),
                                           .column_sums = world.in_out(DType::f32, {range.columns}, columns_before),
                                           .first = range.first,
                                           .columns = range.columns};
                  adafactor_sums(world.stream(), args);
                  return {world.values(args.row_sums), world.values(args.column_sums)};
                },
                {rows, columns},
                3e-6});
  }
}

TEST(Adafactor, MomentsAreMeans) {
  // A rank has rows 1 and 2 of a matrix [4, 8], and columns 0 to 2.
  const double beta = static_cast<float>(0.75);
  const Values row{1, 2}, column{3, 4, 5}, all{8, 16, 32, 64};
  check_case({"adafactor_moments",
              [&](World& world) -> std::vector<Values> {
                const AdafactorMoments args{.row = world.in_out(DType::f32, {2}, row),
                                            .column = world.in_out(DType::f32, {3}, column),
                                            .mean = world.in_out(DType::f32, {1}, {7}),
                                            .row_sums = world.in(DType::f32, {2}, {16, 32}),
                                            .column_sums = world.in(DType::f32, {3}, {4, 8, 12}),
                                            .all_row_sums = world.in(DType::f32, {4}, all),
                                            .hyper = world.in(DType::f32, {2}, {0.1, beta}),
                                            .skip = world.in(DType::i32, {1}, {0}),
                                            .columns = 8};
                adafactor_moments(world.stream(), args);
                return {world.values(args.row), world.values(args.column), world.values(args.mean)};
              },
              {{0.75 + 0.25 * 2, 1.5 + 0.25 * 4}, {2.25 + 0.25, 3 + 0.5, 3.75 + 0.75}, {5.25 + 0.25 * 120 / 32}},
              0});
}

Values positive(std::int64_t n, std::uint64_t seed) {
  Values values = random_values(n, seed);
  for (double& x : values) x = rounded(std::abs(x) + 0.1, DType::f32);
  return values;
}

TEST(Adafactor, DirectionsDivideByTheRoots) {
  for (const bool factored : {true, false}) {
    for (const bool scales : {true, false}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        for (const Range& range : kRanges) {
          const Values gradient = random_values(range.n, 1), weight = random_values(range.n, 2, dtype),
                       row = positive(range.rows(), 3), column = positive(range.columns, 4),
                       second = positive(range.n, 5);
          const double beta = static_cast<float>(0.75), mean = 0.5;
          Values u, after;
          double updates = 1, weights = 2;
          for (std::size_t i = 0; i < gradient.size(); ++i) {
            const double g = gradient[i] * kCoefficient;
            const std::int64_t e = range.first + static_cast<std::int64_t>(i);
            after.push_back(beta * second[i] + (1 - beta) * g * g);
            const double of_row = row[static_cast<std::size_t>(e / range.columns - range.first / range.columns)] / mean;
            u.push_back(factored ? g / std::sqrt(of_row * column[static_cast<std::size_t>(e % range.columns)])
                                 : g / std::sqrt(after.back()));
            updates += u.back() * u.back(), weights += weight[i] * weight[i];
          }
          std::vector<Values> expected{u, {updates}};
          if (scales) expected.push_back({weights});
          if (!factored) expected.push_back(after);
          check_case(
              {cat("adafactor_direction ", range.columns, factored ? "" : " elementwise", scales ? " scaled" : ""),
               [&](World& world) -> std::vector<Values> {
                 const AdafactorDirection args{
                     .gradient = world.in_out(DType::f32, {range.n}, gradient),
                     .coefficient = world.in(DType::f32, {1}, {kCoefficient}),
                     .weight = scales ? world.in(dtype, {range.n}, weight) : TensorView(),
                     .row = factored ? world.in(DType::f32, {range.rows()}, row) : TensorView(),
                     .column = factored ? world.in(DType::f32, {range.columns}, column) : TensorView(),
                     .mean = factored ? world.in(DType::f32, {1}, {mean}) : TensorView(),
                     .second = factored ? TensorView() : world.in_out(DType::f32, {range.n}, second),
                     .update_sum = world.in_out(DType::f32, {1}, {1}),
                     .weight_sum = scales ? world.in_out(DType::f32, {1}, {2}) : TensorView(),
                     .hyper = world.in(DType::f32, {2}, {0.1, beta}),
                     .skip = world.in(DType::i32, {1}, {0}),
                     .first = range.first,
                     .columns = range.columns};
                 adafactor_direction(world.stream(), args);
                 std::vector<Values> got{world.values(args.gradient), world.values(args.update_sum)};
                 if (scales) got.push_back(world.values(args.weight_sum));
                 if (!factored) got.push_back(world.values(args.second));
                 return got;
               },
               expected, 3e-6});
        }
      }
    }
  }
}

TEST(Adafactor, AppliesTheClippedUpdate) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const double update_sum : {40.0, 4000.0}) {
      for (const double weight_sum : {-1.0, 1e-9, 90.0}) {
        const std::int64_t n = 37;
        const Values weight = random_values(n, 1, dtype), u = random_values(n, 2);
        const double scale = weight_sum < 0 ? 1 : std::max(1e-3, std::sqrt(weight_sum / 100)),
                     clip = std::max(1.0, std::sqrt(update_sum / 100));
        Values expected;
        for (std::size_t i = 0; i < u.size(); ++i) {
          expected.push_back(weight[i] * (1 - 0.1 * scale * 0.5) - 0.1 * scale * u[i] / clip);
        }
        check_case({cat("adafactor_apply ", update_sum, " ", weight_sum, " ", to_string(dtype)),
                    [&](World& world) -> std::vector<Values> {
                      const AdafactorApply args{
                          .weight = world.in_out(dtype, {n}, weight),
                          .direction = world.in(DType::f32, {n}, u),
                          .compute_weight = world.out(DType::bf16, {n}),
                          .update_sum = world.in(DType::f32, {1}, {update_sum}),
                          .weight_sum = weight_sum < 0 ? TensorView() : world.in(DType::f32, {1}, {weight_sum}),
                          .hyper = world.in(DType::f32, {2}, {0.1, 0.5}),
                          .skip = world.in(DType::i32, {1}, {0}),
                          .elements = 100,
                          .weight_decay = 0.5};
                      adafactor_apply(world.stream(), args);
                      const Values w = world.values(args.weight), c = world.values(args.compute_weight);
                      for (std::size_t i = 0; i < c.size(); ++i) EXPECT_EQ(c[i], rounded(w[i], DType::bf16));
                      return {w};
                    },
                    {expected},
                    dtype == DType::bf16 ? kBf16Tolerance : 2e-6});
      }
    }
  }
}

TEST(Adafactor, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView four = world.in_out(DType::f32, {4}, Values(4)), two = world.in_out(DType::f32, {2}, Values(2)),
                   one = world.in_out(DType::f32, {1}, Values(1)), other = world.in_out(DType::f32, {2}, Values(2));
  expect_rejected(
      [&] { adafactor_sums(world.stream(), {.gradient = four, .row_sums = one, .column_sums = two, .columns = 2}); },
      "row_sums has shape");
  expect_rejected(
      [&] { adafactor_direction(world.stream(), {.gradient = four, .weight = four, .update_sum = one, .hyper = two}); },
      "either rows and columns, or second");
  expect_rejected(
      [&] {
        adafactor_apply(world.stream(),
                        {.weight = two, .direction = other, .update_sum = one, .hyper = four.rows(0, 2)});
      },
      "2 of 1 elements");
}

}  // namespace adafactor_cases
}  // namespace hawser::ops
