#include "ops/dropout/dropout.h"

#include <numeric>

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace dropout_cases {

using namespace testing;

constexpr std::int64_t kTokens = 9, kColumns = 24;

// Rows of two sequences, out of order, as a rank of a context group has them.
Values row_ids() {
  Values ids;
  for (std::int64_t t = 0; t < kTokens; ++t) ids.insert(ids.end(), {static_cast<double>(t / 5), 30.0 - 3.0 * t});
  return ids;
}

Values dropped(const Values& x, double p, double step, std::int64_t first_column) {
  Values out;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t t = i / kColumns, c = static_cast<std::size_t>(first_column) + i % kColumns;
    const auto ids = row_ids();
    const PhiloxWords words = philox({static_cast<std::uint32_t>(c / 4), static_cast<std::uint32_t>(ids[2 * t + 1]),
                                      static_cast<std::uint32_t>(ids[2 * t]), static_cast<std::uint32_t>(step)},
                                     {7, 8});
    out.push_back(words[c % 4] * 0x1p-32 < p ? 0.0 : x[i] / (1 - p));
  }
  return out;
}

TEST(Dropout, DrawsTheNumbersOfItsFormula) {
  for (const DType act : {DType::f32, DType::bf16}) {
    for (const bool accumulate : {false, true}) {
      for (const std::int64_t first : {0, 13, 16}) {
        const Values x = random_values(kTokens * kColumns, 1, act), start = random_values(kTokens * kColumns, 2, act);
        Values expected = dropped(x, 0.3, 1234, first);
        for (std::size_t i = 0; accumulate && i < expected.size(); ++i) expected[i] += start[i];
        check_case({cat("dropout ", to_string(act), accumulate ? " accumulate" : "", " from column ", first),
                    [&](World& world) -> std::vector<Values> {
                      const Shape shape{kTokens, kColumns};
                      const std::int64_t gap = first == 16 ? 0 : 1;
                      const Dropout args{
                          .x = world.in(act, shape, x, first == 16 ? 0 : 3),  // dense rows: vectors on a GPU
                          .y = accumulate ? world.in_out(act, shape, start, gap) : world.out(act, shape, gap),
                          .probability = 0.3,
                          .random = {.key = {7, 8},
                                     .step = world.in(DType::i32, {1}, {1234}),
                                     .rows = world.in(DType::i32, {kTokens, 2}, row_ids())},
                          .first_column = first,
                          .accumulate = accumulate};
                      dropout(world.stream(), args);
                      return {world.values(args.y)};
                    },
                    {expected},
                    act == DType::bf16 ? kBf16Tolerance : 1e-6});
      }
    }
  }
}

TEST(Dropout, KeepsTheMean) {
  World world(DeviceKind::cpu, 2);
  const std::int64_t rows = 200, columns = 500;
  Values ids;
  for (std::int64_t t = 0; t < rows; ++t) ids.insert(ids.end(), {0.0, static_cast<double>(t)});
  const Dropout args{
      .x = world.in(DType::f32, {rows, columns}, Values(static_cast<std::size_t>(rows * columns), 1.0)),
      .y = world.out(DType::f32, {rows, columns}),
      .probability = 0.1,
      .random = {.key = {1, 2}, .step = world.in(DType::i32, {1}, {0}), .rows = world.in(DType::i32, {rows, 2}, ids)}};
  dropout(world.stream(), args);
  const Values y = world.values(args.y);
  const double sum = std::accumulate(y.begin(), y.end(), 0.0);
  const double deviation = std::sqrt(0.1 / 0.9 / static_cast<double>(rows * columns));
  EXPECT_NEAR(sum / static_cast<double>(rows * columns), 1.0, 4 * deviation);
}

TEST(Dropout, RejectsWhatItCannotDo) {
  World world(DeviceKind::cpu, 1);
  Dropout args{.x = world.in(DType::f32, {2, 3}, Values(6)),
               .y = world.out(DType::f32, {2, 3}),
               .probability = 1.0,
               .random = {.step = world.in(DType::i32, {1}, {0}), .rows = world.in(DType::i32, {2, 2}, Values(4))}};
  expect_rejected([&] { dropout(world.stream(), args); }, "probability 1 is not in [0, 1)");
  args.probability = 0.5;
  args.random.rows = world.in(DType::i32, {3, 2}, Values(6));
  expect_rejected([&] { dropout(world.stream(), args); }, "rows");
}

}  // namespace dropout_cases
}  // namespace hawser::ops
