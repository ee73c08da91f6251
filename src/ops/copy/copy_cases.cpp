#include "ops/copy/copy.h"

#include "ops/bias/add_bias.h"
#include "ops/copy/add.h"
#include "ops/copy/permute_rows.h"
#include "ops/copy/sum_parts.h"
#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace copy_cases {

using namespace testing;

constexpr auto kActs = {DType::f32, DType::bf16};

TEST(Add, AgreesWithFloat64) {
  for (const DType a_type : kActs) {
    for (const DType y_type : kActs) {
      for (const std::int64_t pad : {0, 3, 8}) {
        const Shape shape{7, pad == 8 ? 96 : 83};
        const auto a = random_values(shape.elements(), 1, a_type), b = random_values(shape.elements(), 2);
        check_case({cat("add ", to_string(a_type), " ", to_string(y_type), " ", pad),
                    [&](World& world) -> std::vector<Values> {
                      const Add args{.a = world.in(a_type, shape, a, pad),
                                     .b = world.in(DType::f32, shape, b, 2 * pad),
                                     .y = world.out(y_type, shape, pad)};
                      add(world.stream(), args);
                      return {world.values(args.y)};
                    },
                    {plus(a, b)},
                    y_type == DType::bf16 ? kBf16Tolerance : 1e-7});
      }
    }
  }
  World world(DeviceKind::cpu, 2);
  const TensorView y = world.in_out(DType::f32, {3}, {1, 2, 3});
  add(world.stream(), {.a = y, .b = y, .y = y});
  EXPECT_EQ(world.values(y), (Values{2, 4, 6}));
  expect_rejected([&] { add(world.stream(), {.a = y.rows(0, 2), .b = y.rows(0, 2), .y = y.rows(1, 2)}); },
                  "share memory");
  expect_rejected([&] { add(world.stream(), {.a = y.rows(0, 2), .b = y, .y = y}); }, "a has shape");
}

// The bits of sums in the parts' order, rounded once, and then of the sum with the residual.
TEST(SumParts, RoundsTheSumAndThenThatWithTheResidual) {
  for (const DType dtype : kActs) {
    for (const auto& [parts, rows, columns] : {std::tuple{2, 5, 16}, {4, 3, 11}, {1, 2, 8}, {3, 300, 33}}) {
      const std::int64_t elements = std::int64_t{rows} * columns;
      const auto all = random_values(parts * elements, 1, dtype), residual = random_values(elements, 2, dtype);
      for (const bool adds : {false, true}) {
        Values expected;
        for (std::int64_t i = 0; i < elements; ++i) {
          float sum = static_cast<float>(all[static_cast<std::size_t>(i)]);
          for (int p = 1; p < parts; ++p) sum += static_cast<float>(all[static_cast<std::size_t>(p * elements + i)]);
          const double once = rounded(sum, dtype), other = residual[static_cast<std::size_t>(i)];
          expected.push_back(adds ? rounded(static_cast<float>(other) + static_cast<float>(once), dtype) : once);
        }
        check_case({cat("sum_parts ", to_string(dtype), " ", parts, adds ? " and a residual" : ""),
                    [&, count = parts, r = rows, c = columns](World& world) -> std::vector<Values> {
                      const SumParts args{.parts = world.in(dtype, {std::int64_t{count} * r, c}, all),
                                          .residual = adds ? world.in(dtype, {r, c}, residual) : TensorView(),
                                          .y = world.out(dtype, {r, c})};
                      sum_parts(world.stream(), args);
                      return {world.values(args.y)};
                    },
                    {expected},
                    0});
      }
    }
  }
  World world(DeviceKind::cpu, 1);
  const TensorView y = world.in_out(DType::f32, {1, 2}, {1, 2}), parts = world.in(DType::f32, {2, 2}, {1, 2, 3, 4});
  sum_parts(world.stream(), {.parts = parts, .residual = y, .y = y});
  EXPECT_EQ(world.values(y), (Values{5, 8}));
  expect_rejected([&] { sum_parts(world.stream(), {.parts = parts, .y = parts.rows(0, 1)}); }, "share memory");
  expect_rejected(
      [&] {
        sum_parts(world.stream(),
                  {.parts = world.in(DType::f32, {3, 2}, Values(6)), .y = world.out(DType::f32, {2, 2})});
      },
      "parts");
}

TEST(AddBias, AgreesWithFloat64) {
  for (const DType act : kActs) {
    for (const std::int64_t n : {21, 48}) {
      const auto y = random_values(5 * n, 1, act), bias = random_values(n, 2, act);
      Values expected = y;
      for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += bias[i % static_cast<std::size_t>(n)];
      check_case(
          {cat("add_bias ", to_string(act)),
           [&](World& world) -> std::vector<Values> {
             const AddBias args{.y = world.in_out(act, {5, n}, y, n == 48 ? 8 : 3), .bias = world.in(act, {n}, bias)};
             add_bias(world.stream(), args);
             return {world.values(args.y)};
           },
           {expected},
           act == DType::bf16 ? kBf16Tolerance : 1e-7});
    }
  }
  World world(DeviceKind::cpu, 1);
  const TensorView y = world.in_out(DType::f32, {2, 3}, Values(6));
  expect_rejected([&] { add_bias(world.stream(), {.y = y, .bias = world.in(DType::f32, {2}, Values(2))}); },
                  "bias has shape");
}

TEST(Cast, RoundsOnceToNearestEven) {
  const auto x = random_values(960, 1);
  Values narrow;
  for (const double v : x) narrow.push_back(rounded(v, DType::bf16));
  for (const std::int64_t pad : {0, 5, 8}) {
    check_case(
        {cat("cast to bf16 ", pad),
         [&](World& world) -> std::vector<Values> {
           const Cast args{.x = world.in(DType::f32, {20, 48}, x, pad), .y = world.out(DType::bf16, {20, 48}, pad)};
           cast(world.stream(), args);
           return {world.values(args.y)};
         },
         {narrow},
         0});
    check_case({cat("cast to float32 ", pad),
                [&](World& world) -> std::vector<Values> {
                  const Cast args{.x = world.in(DType::bf16, {20, 48}, narrow, pad),
                                  .y = world.out(DType::f32, {20, 48}, pad)};
                  cast(world.stream(), args);
                  return {world.values(args.y)};
                },
                {narrow},
                0});
  }
  // Special values (NaN, infinities) are preserved at every vector level.
  for (const VectorLevel level : {VectorLevel::baseline, VectorLevel::avx2, VectorLevel::avx512}) {
    if (level > best_vector_level()) continue;
    set_vector_level(level);
    World world(DeviceKind::cpu, 1);
    Values special(32, std::numeric_limits<double>::quiet_NaN());
    special[1] = std::numeric_limits<double>::infinity();
    special[2] = -special[1];
    special[3] = 3.4e38;
    const TensorView y = world.out(DType::bf16, {32});
    cast(world.stream(), {.x = world.in(DType::f32, {32}, special), .y = y});
    const Values got = world.values(y);
    EXPECT_TRUE(std::isnan(got[0]) && std::isnan(got[31]));
    EXPECT_EQ(got[1], special[1]);
    EXPECT_EQ(got[2], special[2]);
    EXPECT_EQ(got[3], special[1]);  // rounds up beyond the largest bf16
  }
  World world(DeviceKind::cpu, 1);
  const TensorView f = world.in(DType::f32, {4}, Values(4));
  expect_rejected([&] { cast(world.stream(), {.x = f, .y = world.out(DType::i32, {4})}); }, "y is int32");
}

TEST(Copy, CopiesAnyTypeBetweenPaddedRows) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::i32, DType::u8}) {
    for (const std::int64_t n : {10, 32}) {
      Values x;
      for (int i = 0; i < 7 * n; ++i) x.push_back(i);
      for (const auto& [pad_x, pad_y] : {std::pair{0, 0}, {3, 0}, {0, 2}, {1, 4}, {16, 32}}) {
        check_case({cat("copy ", to_string(dtype), pad_x, pad_y),
                    [&, from = pad_x, to = pad_y](World& world) -> std::vector<Values> {
                      const Copy args{.x = world.in(dtype, {7, n}, x, from), .y = world.out(dtype, {7, n}, to)};
                      copy(world.stream(), args);
                      return {world.values(args.y)};
                    },
                    {x},
                    0});
      }
    }
  }
  World world(DeviceKind::cpu, 1);
  const TensorView a = world.in(DType::f32, {4}, Values(4));
  expect_rejected([&] { copy(world.stream(), {.x = a, .y = a}); }, "share memory");
  expect_rejected([&] { copy(world.stream(), {.x = a, .y = world.out(DType::i32, {4})}); }, "y is int32");
}

TEST(Fill, SetsEveryElementAndNoGap) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::i32}) {
    for (const std::int64_t pad : {0, 3}) {
      check_case({cat("fill ", to_string(dtype), pad),
                  [&](World& world) -> std::vector<Values> {
                    const TensorView y = world.out(dtype, {5, 9}, pad);
                    fill(world.stream(), {.y = y, .value = -3});
                    return {world.values(y)};
                  },
                  {Values(45, -3.0)},
                  0});
    }
  }
  World world(DeviceKind::cpu, 1);
  expect_rejected([&] { fill(world.stream(), {.y = world.out(DType::i32, {2}), .value = 0.5}); }, "not an int32");
  expect_rejected([&] { fill(world.stream(), {}); }, "y is missing");
}

TEST(PermuteRows, GatherAndScatterAreInverse) {
  const Values index{3, 0, 5, 1};
  for (const DType dtype : kActs) {
    for (const std::int64_t c : {21, 32}) {
      const std::int64_t pad = c == 32 ? 8 : 1;
      const auto x = random_values(6 * c, 1, dtype), rows = random_values(4 * c, 2, dtype),
                 old = random_values(6 * c, 3, dtype);
      Values gathered, scattered = old, added = old;
      for (std::size_t n = 0; n < 4; ++n) {
        for (std::int64_t i = 0; i < c; ++i) {
          const auto at = static_cast<std::size_t>(static_cast<std::int64_t>(index[n]) * c + i);
          gathered.push_back(x[at]);
          scattered[at] = rows[n * c + i];
          added[at] += rows[n * c + i];
        }
      }
      check_case({"gather_rows",
                  [&](World& world) -> std::vector<Values> {
                    const GatherRows args{.x = world.in(dtype, {6, c}, x, 2 * pad),
                                          .index = world.in(DType::i32, {4}, index),
                                          .y = world.out(dtype, {4, c}, 3 * pad)};
                    gather_rows(world.stream(), args);
                    return {world.values(args.y)};
                  },
                  {gathered},
                  0});
      for (const bool accumulate : {false, true}) {
        for (const DType to : {dtype, DType::f32}) {
          check_case({"scatter_rows",
                      [&](World& world) -> std::vector<Values> {
                        const ScatterRows args{.x = world.in(dtype, {4, c}, rows, 2 * pad),
                                               .index = world.in(DType::i32, {4}, index),
                                               .y = accumulate ? world.in_out(to, {6, c}, old, 3 * pad)
                                                               : world.out(to, {6, c}, 3 * pad, old),
                                               .accumulate = accumulate};
                        scatter_rows(world.stream(), args);
                        return {world.values(args.y)};
                      },
                      {accumulate ? added : scattered},
                      accumulate ? kBf16Tolerance : 0});
        }
      }
    }
  }
}

TEST(PermuteRows, ScatterSkipsRowsWithoutATarget) {
  const Values rows = random_values(std::int64_t{5} * 8, 4, DType::f32), old = random_values(6 * 8, 5, DType::f32);
  Values expected = old;
  for (std::size_t i = 0; i < 8; ++i) {
    expected[4 * 8 + i] = rows[1 * 8 + i];
    expected[2 * 8 + i] = rows[3 * 8 + i];
  }
  // A row may be heads side by side, as in the KV cache.
  for (const bool heads : {false, true}) {
    const auto shape = [&](std::int64_t count) { return heads ? Shape{count, 2, 4} : Shape{count, 8}; };
    check_case({cat("scatter_rows", heads ? ", heads" : ""),
                [&](World& world) -> std::vector<Values> {
                  const ScatterRows args{.x = world.in(DType::f32, shape(5), rows),
                                         .index = world.in(DType::i32, {5}, {-1, 4, -1, 2, -1}),
                                         .y = world.out(DType::f32, shape(6), 0, old)};
                  scatter_rows(world.stream(), args);
                  return {world.values(args.y)};
                },
                {expected},
                0});
  }
}

TEST(PermuteRows, RejectsBadArguments) {
  for (const double bad : {-2.0, 6.0}) {
    for (const DeviceKind kind : devices()) {
      World world(kind, 1);
      scatter_rows(world.stream(), {.x = world.in(DType::f32, {2, 2}, Values(4)),
                                    .index = world.in(DType::i32, {2}, {0, bad}),
                                    .y = world.out(DType::f32, {6, 2})});
      EXPECT_THROW(world.stream().synchronize(), InternalError);
    }
  }
  for (const double bad : {-1.0, 6.0}) {
    for (const DeviceKind kind : devices()) {
      World world(kind, 1);
      const TensorView index = world.in(DType::i32, {2}, {0, bad});
      gather_rows(world.stream(),
                  {.x = world.in(DType::f32, {6, 2}, Values(12)), .index = index, .y = world.out(DType::f32, {2, 2})});
      EXPECT_THROW(world.stream().synchronize(), InternalError);
    }
  }
  World world(DeviceKind::cpu, 1);
  const TensorView x = world.in(DType::f32, {6, 2}, Values(12)), index = world.in(DType::i32, {2}, Values(2));
  expect_rejected(
      [&] {
        gather_rows(world.stream(), {.x = x, .index = index, .y = world.out(DType::f32, {3, 2})});
      },
      "y has shape");
  expect_rejected([&] { gather_rows(world.stream(), {.x = x, .index = index, .y = x.rows(0, 2)}); }, "share memory");
  expect_rejected(
      [&] {
        scatter_rows(world.stream(), {.x = x, .index = index, .y = world.out(DType::f32, {8, 2})});
      },
      "x has shape");
}

}  // namespace copy_cases
}  // namespace hawser::ops
