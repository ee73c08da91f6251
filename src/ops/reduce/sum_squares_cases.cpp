#include "ops/reduce/sum_squares.h"

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace sum_squares_cases {

using namespace testing;

TEST(SumSquares, AgreesWithFloat64) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t n : {1, 15, 5000, 70001}) {
      for (const bool accumulate : {false, true}) {
        const auto x = random_values(n, 1, dtype);
        check_case({cat("sum_squares ", n),
                    [&](World& world) -> std::vector<Values> {
                      const SumSquares args{
                          .x = world.in(dtype, {n}, x),
                          .out = accumulate ? world.in_out(DType::f32, {1}, {2.0}) : world.out(DType::f32, {1}),
                          .accumulate = accumulate};
                      sum_squares(world.stream(), args);
                      return {world.values(args.out)};
                    },
                    {{dot(x, x) + (accumulate ? 2.0 : 0.0)}},
                    1e-7});
      }
    }
  }
}

TEST(SumSquares, BySegment) {
  const auto x = random_values(9000, 1);
  const std::vector<std::int64_t> ends{1, 1, 5000, 8999};
  Values expected;
  std::int64_t begin = 0;
  for (const std::int64_t end : ends) {
    const Values part(x.begin() + begin, x.begin() + end);
    expected.push_back(dot(part, part));
    begin = end;
  }
  check_case({"segment_sum_squares",
              [&](World& world) -> std::vector<Values> {
                const SegmentSumSquares args{
                    .x = world.in(DType::f32, {9000}, x), .ends = ends, .out = world.out(DType::f32, {4})};
                segment_sum_squares(world.stream(), args);
                return {world.values(args.out)};
              },
              {expected},
              1e-7});
}

TEST(ClipCoefficient, FollowsTorch) {
  struct Row {
    double squares, max_norm, norm, coefficient, skip;
    double loss_scale = 1;
  };
  const double inf = std::numeric_limits<double>::infinity();
  for (const Row& row : {Row{16, 1, 4, 1 / (4 + 1e-6), 0}, Row{0.25, 1, 0.5, 1, 0}, Row{16, 0, 4, 1, 0},
                         Row{0, 1, 0, 1, 0}, Row{inf, 1, inf, 0, 1}, Row{inf, 0, inf, 0, 1},
                         Row{1024, 1, 4, 1 / (4 + 1e-6) / 8, 0, 8}, Row{1024, 0, 4, 0.125, 0, 8}}) {
    check_case({"clip_coefficient",
                [&](World& world) -> std::vector<Values> {
                  const ClipCoefficient args{.sum_squares = world.in(DType::f32, {1}, {row.squares}),
                                             .loss_scale = world.in(DType::f32, {1}, {row.loss_scale}),
                                             .max_norm = row.max_norm,
                                             .norm_out = world.out(DType::f32, {1}),
                                             .coefficient = world.out(DType::f32, {1}),
                                             .skip = world.out(DType::i32, {1}, 0, {0.0})};
                  clip_coefficient(world.stream(), args);
                  return {world.values(args.norm_out), world.values(args.coefficient), world.values(args.skip)};
                },
                {{row.norm}, {row.coefficient}, {row.skip}},
                1e-7});
  }
}

TEST(SumSquares, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView x = world.in(DType::f32, {8}, Values(8)), out = world.out(DType::f32, {1});
  Stream& s = world.stream();
  expect_rejected([&] { sum_squares(s, {.x = world.in(DType::i32, {8}, Values(8)), .out = out}); }, "x is int32");
  expect_rejected([&] { sum_squares(s, {.x = x, .out = x.rows(0, 1)}); }, "share memory");
  expect_rejected([&] { segment_sum_squares(s, {.x = x, .ends = {9}, .out = out}); }, "end 9");
  expect_rejected(
      [&] {
        segment_sum_squares(s, {.x = x, .ends = {5, 4}, .out = world.out(DType::f32, {2})});
      },
      "end 4");
  expect_rejected([&] { clip_coefficient(s, {.sum_squares = out, .max_norm = -1, .coefficient = x.rows(0, 1)}); },
                  "max_norm");
}

}  // namespace sum_squares_cases
}  // namespace hawser::ops
