#include "ops/moe/dispatch.h"

#include <limits>

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace dispatch_cases {

using namespace testing;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Assignments of tokens to experts, and the plan that they give.
struct Routing {
  std::int64_t tokens, experts, per_token;
  Values chosen;
  Values offsets{0}, rows, assignments;

  Routing(std::int64_t t, std::int64_t e, std::int64_t k, Values c)
      : tokens(t), experts(e), per_token(k), chosen(std::move(c)) {
    rows.assign(chosen.size(), -1);
    assignments.assign(static_cast<std::size_t>(expert_rows(tokens, per_token, experts)), -1);
    for (std::int64_t expert = 0; expert < experts; ++expert) {
      auto row = static_cast<std::size_t>(offsets.back());
      std::int64_t count = 0;
      for (std::size_t a = 0; a < chosen.size(); ++a) {
        if (chosen[a] != static_cast<double>(expert)) continue;
        rows[a] = static_cast<double>(row);
        assignments[row++] = static_cast<double>(a);
        ++count;
      }
      offsets.push_back(offsets.back() + static_cast<double>(round_up(count, kGroupRows)));
    }
  }
  std::int64_t max_rows() const { return static_cast<std::int64_t>(assignments.size()); }
  std::int64_t used() const { return static_cast<std::int64_t>(offsets.back()); }
  // Random rows; those from offsets[E] on are NaN.
  Values random_rows(std::int64_t columns, std::uint64_t seed, DType dtype) const {
    Values out = random_values(max_rows() * columns, seed, dtype);
    std::fill(out.begin() + static_cast<std::ptrdiff_t>(used() * columns), out.end(), kNan);
    return out;
  }
};

// Of the kinds of routing: even, all tokens to the same experts, an expert without tokens, no tokens at all.
std::vector<Routing> routings() {
  const auto make = [](std::int64_t tokens, std::int64_t experts, std::int64_t per_token, auto expert) {
    Values chosen;
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t k = 0; k < per_token; ++k) chosen.push_back(static_cast<double>(expert(t, k)));
    }
    return Routing(tokens, experts, per_token, chosen);
  };
  return {make(20, 4, 2, [](auto t, auto k) { return (t * 5 + k * 3) % 4; }),
          make(140, 3, 1, [](auto, auto) { return 1; }),
          make(60, 8, 2, [](auto t, auto k) { return t % 7 == 3 ? -1
                                                     : k == 0   ? 6
                                                                : t % 5; }),
          make(129, 1, 1, [](auto, auto) { return 0; }),
          make(2, 8, 3, [](auto t, auto k) { return 7 - k - 2 * t; }),
          make(5, 4, 2, [](auto, auto) { return -1; })};
}

TEST(ExpertPlan, GroupsAssignmentsByExpert) {
  for (const Routing& r : routings()) {
    EXPECT_LE(r.used(), r.max_rows());
    EXPECT_EQ(r.max_rows() % kGroupRows, 0);
    check_case({cat("expert_plan ", r.tokens, " ", r.experts),
                [&](World& world) -> std::vector<Values> {
                  const ExpertPlan args{.experts = world.in(DType::i32, {r.tokens, r.per_token}, r.chosen),
                                        .offsets = world.out(DType::i32, {r.experts + 1}),
                                        .rows = world.out(DType::i32, {r.tokens, r.per_token}),
                                        .assignments = world.out(DType::i32, {r.max_rows()})};
                  expert_plan(world.stream(), args);
                  return {world.values(args.offsets), world.values(args.rows), world.values(args.assignments)};
                },
                {r.offsets, r.rows, r.assignments},
                0});
  }
}

TEST(ExpertPlan, TheBoundIsReached) {
  const Routing r(260, 2, 1, [] {
    Values chosen(260, 0.0);
    for (std::size_t t = 0; t < 129; ++t) chosen[t] = 1;
    return chosen;
  }());  // 131 and 129 rows
  EXPECT_EQ(r.used(), 512);
  EXPECT_EQ(expert_rows(260, 1, 2), 512);
  EXPECT_EQ(expert_rows(3, 1, 64), 3 * kGroupRows);
  EXPECT_EQ(expert_rows(0, 2, 8), 0);
}

TEST(DispatchRows, CopiesTokensAndZeroesPadding) {
  for (const Routing& r : routings()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const bool weighted : {false, true}) {
        const std::int64_t columns = weighted ? 21 : 32, pad = weighted ? 3 : 0;
        const Values x = random_values(r.tokens * columns, 1, dtype),
                     weights = random_values(r.tokens * r.per_token, 2);
        const Values before = random_values(r.max_rows() * columns, 3, dtype);
        Values expected;
        for (std::int64_t row = 0; row < r.max_rows(); ++row) {
          const double a = r.assignments[static_cast<std::size_t>(row)];
          const std::int64_t token = static_cast<std::int64_t>(a) / r.per_token;
          for (std::int64_t c = 0; c < columns; ++c) {
            const double value = a < 0 ? 0
                                       : x[static_cast<std::size_t>(token * columns + c)] *
                                             (weighted ? weights[static_cast<std::size_t>(a)] : 1);
            expected.push_back(row < r.used() ? value : before[static_cast<std::size_t>(row * columns + c)]);
          }
        }
        check_case({cat("dispatch_rows ", r.tokens, " ", r.experts, " ", to_string(dtype), weighted ? " weighted" : ""),
                    [&](World& world) -> std::vector<Values> {
                      DispatchRows args{.x = world.in(dtype, {r.tokens, columns}, x, pad),
                                        .assignments = world.in(DType::i32, {r.max_rows()}, r.assignments),
                                        .offsets = world.in(DType::i32, {r.experts + 1}, r.offsets),
                                        .y = world.out(dtype, {r.max_rows(), columns}, 2 * pad, before),
                                        .per_token = r.per_token};
                      if (weighted) args.weights = world.in(DType::f32, {r.tokens, r.per_token}, weights);
                      dispatch_rows(world.stream(), args);
                      return {world.values(args.y)};
                    },
                    {expected},
                    !weighted              ? 0
                    : dtype == DType::bf16 ? kBf16Tolerance
                                           : 1e-6});
      }
    }
  }
}

TEST(DispatchRows, CopiesTheBitsOfFp8) {
  const Routing r = routings().front();
  for (const std::int64_t columns : {14, 64}) {
    Values x, before, expected;
    for (std::int64_t i = 0; i < r.tokens * columns; ++i)
      x.push_back(static_cast<double>((i * 37 + i / columns) % 251));
    for (std::int64_t i = 0; i < r.max_rows() * columns; ++i) before.push_back(static_cast<double>(i % 101));
    for (std::int64_t i = 0; i < r.max_rows() * columns; ++i) {
      const double a = r.assignments[static_cast<std::size_t>(i / columns)];
      const std::int64_t token = static_cast<std::int64_t>(a) / r.per_token;
      const double value = a < 0 ? 0 : x[static_cast<std::size_t>(token * columns + i % columns)];
      expected.push_back(i / columns < r.used() ? value : before[static_cast<std::size_t>(i)]);
    }
    check_case({cat("dispatch_rows of FP8, columns ", columns),
                [&](World& world) -> std::vector<Values> {
                  const DispatchRows args{.x = world.in(DType::f8e4m3, {r.tokens, columns}, x),
                                          .assignments = world.in(DType::i32, {r.max_rows()}, r.assignments),
                                          .offsets = world.in(DType::i32, {r.experts + 1}, r.offsets),
                                          .y = world.out(DType::f8e4m3, {r.max_rows(), columns}, 0, before),
                                          .per_token = r.per_token};
                  dispatch_rows(world.stream(), args);
                  return {world.values(args.y)};
                },
                {expected},
                0});
  }
  World world(DeviceKind::cpu, 1);
  const auto i32 = [&](std::int64_t n) { return world.in(DType::i32, {n}, Values(static_cast<std::size_t>(n))); };
  const auto matrix = [&](std::int64_t columns) { return world.out(DType::f8e5m2, {256, columns}); };
  expect_rejected(
      [&] {
        dispatch_rows(world.stream(), {.x = matrix(7), .assignments = i32(256), .offsets = i32(3), .y = matrix(7)});
      },
      "FP8 rows must be dense and have pairs");
  expect_rejected(
      [&] {
        dispatch_rows(world.stream(), {.x = matrix(8),
                                       .assignments = i32(256),
                                       .offsets = i32(3),
                                       .weights = world.in(DType::f32, {256, 1}, Values(256)),
                                       .y = matrix(8)});
      },
      "x ");
}

TEST(CombineRows, AddsTheRowsOfAToken) {
  for (const Routing& r : routings()) {
    for (const auto& [in, add, out] : {std::tuple{DType::f32, DType::f32, DType::f32},
                                       {DType::bf16, DType::bf16, DType::bf16},
                                       {DType::bf16, DType::f32, DType::bf16}}) {
      for (const int form : {0, 1, 2}) {  // weights and a residual; weights; a residual
        const std::int64_t columns = form == 0 ? 21 : 32, pad = form == 0 ? 3 : 0;
        const Values x = r.random_rows(columns, 1, in), residual = random_values(r.tokens * columns, 2, add),
                     weights = random_values(r.tokens * r.per_token, 3);
        Values expected;
        for (std::int64_t t = 0; t < r.tokens; ++t) {
          for (std::int64_t c = 0; c < columns; ++c) {
            double sum = form == 1 ? 0 : residual[static_cast<std::size_t>(t * columns + c)];
            for (std::int64_t k = 0; k < r.per_token; ++k) {
              const auto a = static_cast<std::size_t>(t * r.per_token + k);
              if (r.rows[a] < 0) continue;
              const auto at = static_cast<std::size_t>(static_cast<std::int64_t>(r.rows[a]) * columns + c);
              sum += x[at] * (form == 2 ? 1 : weights[a]);
            }
            expected.push_back(sum);
          }
        }
        check_case({cat("combine_rows ", r.tokens, " ", r.experts, " ", to_string(in), " ", to_string(add), " ", form),
                    [&, in = in, add = add, out = out](World& world) -> std::vector<Values> {
                      CombineRows args{.x = world.in(in, {r.max_rows(), columns}, x, pad),
                                       .rows = world.in(DType::i32, {r.tokens, r.per_token}, r.rows),
                                       .y = world.out(out, {r.tokens, columns}, 2 * pad)};
                      if (form != 2) args.weights = world.in(DType::f32, {r.tokens, r.per_token}, weights);
                      if (form != 1) args.residual = world.in(add, {r.tokens, columns}, residual, 3 * pad);
                      combine_rows(world.stream(), args);
                      return {world.values(args.y)};
                    },
                    {expected},
                    out == DType::bf16 ? kBf16Tolerance : 2e-6});
      }
    }
  }
}

TEST(WeightedRowsBackward, IsTheGradientOfAWeightedSum) {
  for (const Routing& r : routings()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const std::int64_t columns = dtype == DType::bf16 ? 40 : 21, pad = dtype == DType::bf16 ? 0 : 3;
      const Values x = r.random_rows(columns, 1, dtype), before = r.random_rows(columns, 2, dtype),
                   weights = random_values(r.tokens * r.per_token, 3);
      Values dx = before, dweights(weights.size());
      for (std::size_t a = 0; a < weights.size(); ++a) {
        for (std::int64_t c = 0; r.rows[a] >= 0 && c < columns; ++c) {
          const auto at = static_cast<std::size_t>(static_cast<std::int64_t>(r.rows[a]) * columns + c);
          dweights[a] += x[at] * before[at];
          dx[at] *= weights[a];
        }
      }
      dx.resize(static_cast<std::size_t>(r.used() * columns));
      check_case({cat("weighted_rows_backward ", r.tokens, " ", r.experts, " ", to_string(dtype)),
                  [&](World& world) -> std::vector<Values> {
                    const WeightedRowsBackward args{.x = world.in(dtype, {r.max_rows(), columns}, x, pad),
                                                    .dx = world.in_out(dtype, {r.max_rows(), columns}, before, 2 * pad),
                                                    .rows = world.in(DType::i32, {r.tokens, r.per_token}, r.rows),
                                                    .weights = world.in(DType::f32, {r.tokens, r.per_token}, weights),
                                                    .dweights = world.out(DType::f32, {r.tokens, r.per_token})};
                    weighted_rows_backward(world.stream(), args);
                    Values got = world.values(args.dx);
                    got.resize(dx.size());
                    return {got, world.values(args.dweights)};
                  },
                  {dx, dweights},
                  dtype == DType::bf16 ? kBf16Tolerance : 5e-6});
    }
  }
}

TEST(DispatchRows, RejectsWrongArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView x = world.in(DType::f32, {4, 8}, Values(32)), offsets = world.in(DType::i32, {3}, Values(3)),
                   rows = world.in(DType::i32, {4, 2}, Values(8)), y = world.out(DType::f32, {256, 8});
  expect_rejected([&] { expert_plan(world.stream(), {.experts = rows, .offsets = offsets, .rows = rows}); },
                  "assignments is missing");
  expect_rejected(
      [&] {
        expert_plan(world.stream(), {.experts = rows,
                                     .offsets = offsets,
                                     .rows = world.out(DType::i32, {4, 2}),
                                     .assignments = world.out(DType::i32, {128})});
      },
      "assignments has shape [128], not [256]");
  expect_rejected([&] { dispatch_rows(world.stream(), {.x = x, .offsets = offsets, .y = y}); }, "assignments []");
  expect_rejected([&] { combine_rows(world.stream(), {.x = y, .rows = rows, .y = y}); }, "y has shape [256, 8]");
  expect_rejected([&] { weighted_rows_backward(world.stream(), {.x = y, .dx = x, .rows = rows}); }, "dx has shape");
}

TEST(DispatchRows, AWrongIndexFailsOnTheStream) {
  World world(DeviceKind::cpu, 1);
  const TensorView plan_rows = world.out(DType::i32, {4, 2});
  expert_plan(world.stream(), {.experts = world.in(DType::i32, {4, 2}, {0, 1, 0, 1, 0, 2, 0, 1}),
                               .offsets = world.out(DType::i32, {3}),
                               .rows = plan_rows,
                               .assignments = world.out(DType::i32, {expert_rows(4, 2, 2)})});
  expect_rejected([&] { world.stream().synchronize(); }, "expert 2 at 5 is outside [0, 2)");
}

}  // namespace dispatch_cases
}  // namespace hawser::ops
