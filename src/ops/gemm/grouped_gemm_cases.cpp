#include "ops/gemm/grouped_gemm.h"

#include <limits>

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace grouped_gemm_cases {

using namespace testing;

struct GroupedCase {
  std::vector<std::int64_t> groups;  // rows of each, in units of kGroupRows
  std::int64_t spare = 0;            // rows after the last group
  std::int64_t n = 0, k = 0;
  DType in = DType::f32, out = DType::f32;
  bool transpose_b = false, accumulate = false;
  std::int64_t pad = 0;

  std::int64_t count() const { return static_cast<std::int64_t>(groups.size()); }
  Values offsets() const {
    Values ends{0};
    for (const std::int64_t rows : groups) ends.push_back(ends.back() + static_cast<double>(rows * kGroupRows));
    return ends;
  }
  std::int64_t used() const { return static_cast<std::int64_t>(offsets().back()); }
  std::int64_t rows() const { return used() + spare; }
};

std::string name_of(const char* op, const GroupedCase& c) {
  std::string groups;
  for (const std::int64_t rows : c.groups) groups += cat(" ", rows);
  return cat(op, groups, ", ", c.n, "x", c.k, " ", to_string(c.in), "->", to_string(c.out), c.transpose_b ? " bT" : "",
             c.accumulate ? " accumulate" : "", " pad ", c.pad);
}

double tolerance_of(const GroupedCase& c) {
  return c.out == DType::bf16 ? kBf16Tolerance : 2e-5;
}

// Random rows; those after the last group are NaN, so that a result that reads one is wrong.
Values random_rows(const GroupedCase& c, std::int64_t columns, std::uint64_t seed, DType dtype) {
  Values values = random_values(c.rows() * columns, seed, dtype);
  for (auto i = static_cast<std::size_t>(c.used() * columns); i < values.size(); ++i) {
    values[i] = std::numeric_limits<double>::quiet_NaN();
  }
  return values;
}

// The group of each row before the last group's end.
std::vector<std::int64_t> group_of_rows(const GroupedCase& c) {
  std::vector<std::int64_t> group;
  for (std::int64_t g = 0; g < c.count(); ++g) {
    group.insert(group.end(), static_cast<std::size_t>(c.groups[static_cast<std::size_t>(g)] * kGroupRows), g);
  }
  return group;
}

Values first_rows(Values values, std::int64_t count) {
  values.resize(static_cast<std::size_t>(count));
  return values;
}

Case make_rows_case(const GroupedCase& g) {
  const Values a = random_rows(g, g.k, 1, g.in), b = random_values(g.count() * g.k * g.n, 2, g.in);
  const Values c = random_values(g.rows() * g.n, 3, g.out);
  const auto group = group_of_rows(g);
  Values expected;
  for (std::int64_t r = 0; r < g.used(); ++r) {
    const std::int64_t base = group[static_cast<std::size_t>(r)] * g.k * g.n;
    for (std::int64_t j = 0; j < g.n; ++j) {
      double sum = g.accumulate ? c[static_cast<std::size_t>(r * g.n + j)] : 0;
      for (std::int64_t l = 0; l < g.k; ++l) {
        const std::int64_t at = base + (g.transpose_b ? j * g.k + l : l * g.n + j);
        sum += a[static_cast<std::size_t>(r * g.k + l)] * b[static_cast<std::size_t>(at)];
      }
      expected.push_back(sum);
    }
  }
  const Values spare(c.begin() + static_cast<std::ptrdiff_t>(g.used() * g.n), c.end());  // rows that must not change
  const auto run = [=](World& world) -> std::vector<Values> {
    GroupedGemm args{.a = world.in(g.in, {g.rows(), g.k}, a, g.pad),
                     .b = world.in(g.in, g.transpose_b ? Shape{g.count(), g.n, g.k} : Shape{g.count(), g.k, g.n}, b),
                     .c = g.accumulate ? world.in_out(g.out, {g.rows(), g.n}, c, 2 * g.pad)
                                       : world.out(g.out, {g.rows(), g.n}, 2 * g.pad, c),
                     .offsets = world.in(DType::i32, {g.count() + 1}, g.offsets()),
                     .transpose_b = g.transpose_b,
                     .accumulate = g.accumulate,
                     .flops = 1};
    args.workspace = world.workspace(grouped_gemm_workspace(args, world.stream().target()));
    grouped_gemm(world.stream(), args);
    const Values got = world.values(args.c);
    if (world.meta()) return {expected, spare};
    return {first_rows(got, g.used() * g.n),
            Values(got.begin() + static_cast<std::ptrdiff_t>(g.used() * g.n), got.end())};
  };
  return {name_of("grouped_gemm", g), run, {expected, spare}, tolerance_of(g)};
}

// n columns of B, k of A.
Case make_weight_case(const GroupedCase& g) {
  const Values a = random_rows(g, g.k, 1, g.in), b = random_rows(g, g.n, 2, g.in);
  const Values c = random_values(g.count() * g.k * g.n, 3, g.out);
  const auto group = group_of_rows(g);
  Values expected(c.size());
  if (g.accumulate) expected = c;
  for (std::int64_t r = 0; r < g.used(); ++r) {
    const std::int64_t base = group[static_cast<std::size_t>(r)] * g.k * g.n;
    for (std::int64_t i = 0; i < g.k; ++i) {
      for (std::int64_t j = 0; j < g.n; ++j) {
        expected[static_cast<std::size_t>(base + i * g.n + j)] +=
            a[static_cast<std::size_t>(r * g.k + i)] * b[static_cast<std::size_t>(r * g.n + j)];
      }
    }
  }
  const auto run = [=](World& world) -> std::vector<Values> {
    const Shape shape{g.count(), g.k, g.n};
    GroupedWeightGradient args{.a = world.in(g.in, {g.rows(), g.k}, a, g.pad),
                               .b = world.in(g.in, {g.rows(), g.n}, b, 3 * g.pad),
                               .c = g.accumulate ? world.in_out(g.out, shape, c) : world.out(g.out, shape),
                               .offsets = world.in(DType::i32, {g.count() + 1}, g.offsets()),
                               .accumulate = g.accumulate,
                               .flops = 1};
    args.workspace = world.workspace(grouped_gemm_workspace(args, world.stream().target()));
    grouped_weight_gradient(world.stream(), args);
    return {world.values(args.c)};
  };
  return {name_of("grouped_weight_gradient", g), run, {expected}, tolerance_of(g)};
}

void check_both(const GroupedCase& g) {
  check_case(make_rows_case(g));
  if (!g.transpose_b) check_case(make_weight_case(g));
}

TEST(GroupedGemm, AgreesWithFloat64) {
  for (const DType in : {DType::f32, DType::bf16}) {
    for (const DType out : {DType::f32, DType::bf16}) {
      for (const bool accumulate : {false, true}) {
        for (const bool transpose_b : {false, true}) {
          check_both({.groups = {1, 0, 2},
                      .spare = 128,
                      .n = 40,
                      .k = 24,
                      .in = in,
                      .out = out,
                      .transpose_b = transpose_b,
                      .accumulate = accumulate,
                      .pad = accumulate ? 8 : 0});
        }
      }
    }
  }
}

TEST(GroupedGemm, TakesAnySizesOfGroups) {
  for (const DType in : {DType::f32, DType::bf16}) {
    check_both({.groups = {0, 0, 3, 0}, .spare = 256, .n = 17, .k = 33, .in = in, .out = in});  // all rows to one group
    check_both({.groups = {0, 0}, .spare = 5, .n = 16, .k = 16, .in = in, .accumulate = true});  // no rows
    check_both({.groups = {1}, .n = 8, .k = 8, .in = in});
    check_both({.groups = {1, 11, 1}, .n = 8, .k = 16, .in = in, .out = in, .accumulate = true});  // several blocks
  }
}

// Sizes at which a kernel with tiles of 128 x 256 and sums in steps of 64 has more tiles than clusters run at a time,
// several bands of tiles, parts of tiles, and groups without rows at both ends.
TEST(GroupedGemm, DividesGroupsIntoTiles) {
  for (const bool transpose_b : {false, true}) {
    for (const DType out : {DType::bf16, DType::f32}) {
      check_both({.groups = {0, 1, 0, 2, 0},
                  .spare = 128,
                  .n = 280,
                  .k = 328,
                  .in = DType::bf16,
                  .out = out,
                  .transpose_b = transpose_b,
                  .accumulate = out == DType::f32,
                  .pad = 8});
    }
    check_both(
        {.groups = {1, 37, 2}, .n = 24, .k = 16, .in = DType::bf16, .out = DType::bf16, .transpose_b = transpose_b});
    std::vector<std::int64_t> many;
    for (std::int64_t g = 0; g < 90; ++g) many.push_back(g % 5 == 3 ? 0 : g % 3 + 1);
    check_both({.groups = many, .n = 16, .k = 8, .in = DType::bf16, .out = DType::f32, .transpose_b = transpose_b});
  }
}

TEST(GroupedGemm, RejectsWrongArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView a = world.in(DType::f32, {256, 4}, Values(1024)), c = world.out(DType::f32, {256, 8}),
                   b = world.in(DType::f32, {2, 4, 8}, Values(64)), dw = world.out(DType::f32, {2, 4, 8}),
                   offsets = world.in(DType::i32, {3}, {0, 128, 256});
  expect_rejected([&] { grouped_gemm(world.stream(), {.a = a, .b = b, .c = c}); }, "offsets is missing");
  expect_rejected([&] { grouped_gemm(world.stream(), {.a = a, .b = b, .c = c, .offsets = offsets.rows(0, 2)}); },
                  "offsets has shape [2]");
  expect_rejected(
      [&] { grouped_gemm(world.stream(), {.a = a, .b = b, .c = c, .offsets = offsets, .transpose_b = true}); },
      "b has shape [2, 4, 8], not [2, 8, 4]");
  expect_rejected(
      [&] {
        grouped_gemm(world.stream(), {.a = a, .b = b.reshape({2, 8, 4}), .c = a, .offsets = offsets});
      },
      "b has shape");
  expect_rejected(
      [&] { grouped_weight_gradient(world.stream(), {.a = a, .b = a.rows(0, 128), .c = dw, .offsets = offsets}); },
      "b has shape [128, 4]");
  const TensorView square = world.in(DType::f32, {2, 4, 4}, Values(32));
  expect_rejected([&] { grouped_gemm(world.stream(), {.a = a, .b = square, .c = a, .offsets = offsets}); },
                  "share memory");
}

TEST(GroupedGemm, WrongOffsetsFailOnTheStream) {
  for (const DeviceKind device : devices()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const Values& offsets :
           {Values{128, 128, 256}, {0, 256, 128}, {0, 100, 256}, {0, 128, 384}, {0, -128, 128}, {0, 1 << 30, 256}}) {
        for (const bool weights : {false, true}) {
          World world(device, 1);
          const TensorView a = world.in(dtype, {256, 16}, Values(256 * 16)), ends = world.in(DType::i32, {3}, offsets);
          const auto run = [&] {
            if (weights) {
              GroupedWeightGradient args{.a = a, .b = a, .c = world.out(DType::f32, {2, 16, 16}), .offsets = ends};
              args.workspace = world.workspace(grouped_gemm_workspace(args, world.stream().target()));
              grouped_weight_gradient(world.stream(), args);
            } else {
              GroupedGemm args{.a = a,
                               .b = world.in(dtype, {2, 16, 16}, Values(512)),
                               .c = world.out(DType::f32, {256, 16}),
                               .offsets = ends};
              args.workspace = world.workspace(grouped_gemm_workspace(args, world.stream().target()));
              grouped_gemm(world.stream(), args);
            }
            world.stream().synchronize();
          };
          expect_rejected(run, device == DeviceKind::cuda ? "grouped GEMM: offset "
                               : offsets[0] == 0          ? "has rows ["
                                                          : "begins at row 128");
        }
      }
    }
  }
}

}  // namespace grouped_gemm_cases
}  // namespace hawser::ops
