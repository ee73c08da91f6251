#include <algorithm>
#include <array>
#include <cmath>

#include "ops/gemm/grouped_gemm.h"
#include "ops/testing/case_support.h"
#include "tensor/fp8.h"

namespace hawser::ops {
namespace grouped_fp8_cases {

using namespace testing;

constexpr auto kE4m3 = DType::f8e4m3, kE5m2 = DType::f8e5m2;

double code_of(DType dtype, double value) {
  return dispatch_fp8(dtype, [&](auto tag) -> double { return decltype(tag)(static_cast<float>(value)).bits; });
}

double value_of(DType dtype, double code) {
  return dispatch_fp8(dtype, [&](auto tag) {
    tag.bits = static_cast<std::uint8_t>(code);
    return static_cast<double>(static_cast<float>(tag));
  });
}

struct Fp8Case {
  std::vector<std::int64_t> groups;  // rows of each, in units of kGroupRows
  std::int64_t spare = 0;            // rows after the last group
  std::int64_t n = 0, k = 0;
  DType a = kE4m3, out = DType::f32;
  bool accumulate = false;
  bool integers = false;  // whole numbers and powers of two: results are exact
  double grid = 0;        // all values are multiples of it; 0: any
  bool scales = true, scale_each = true;
  std::int64_t pad = 0;

  std::int64_t count() const { return static_cast<std::int64_t>(groups.size()); }
  Values offsets() const {
    Values ends{0};
    for (const std::int64_t rows : groups) ends.push_back(ends.back() + static_cast<double>(rows * kGroupRows));
    return ends;
  }
  std::int64_t used() const { return static_cast<std::int64_t>(offsets().back()); }
  std::int64_t rows() const { return used() + spare; }
  double scale_a() const { return scales ? 0.25 : 1; }
  Values scales_b() const {
    Values all;
    for (std::int64_t g = 0; g < (scale_each ? count() : 1); ++g) {
      all.push_back(integers ? std::ldexp(1.0, static_cast<int>(g % 4) - 1)
                             : rounded(0.7 - 0.3 * static_cast<double>(g % 5), DType::f32));
    }
    return all;
  }
  double factor(std::int64_t group) const {
    return scales ? scale_a() * scales_b()[static_cast<std::size_t>(scale_each ? group : 0)] : 1;
  }
  double tolerance() const {
    if (integers) return 0;
    return out == DType::bf16 ? kBf16Tolerance : 2e-5;
  }
};

std::string name_of(const char* op, const Fp8Case& c) {
  std::string groups;
  for (const std::int64_t rows : c.groups) groups += cat(" ", rows);
  return cat(op, groups, ", ", c.n, "x", c.k, " ", to_string(c.a), "->", to_string(c.out),
             c.accumulate ? " accumulate" : "", c.integers ? " integers" : "", " pad ", c.pad);
}

// Codes and values of a matrix [rows, columns]; those of rows from `used` on are NaN.
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  DType dtype = kE4m3;
  Values codes, values;

  Matrix(const Fp8Case& c, std::int64_t r, std::int64_t w, std::int64_t used, DType d, std::uint64_t seed)
      : rows(r), columns(w), dtype(d), codes(random_values(r * w, seed)) {
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const double on_grid = c.grid > 0 ? std::round(codes[i] / c.grid) * c.grid : codes[i];
      const double number = c.integers ? std::clamp(std::round(codes[i]), -2.0, 2.0) : on_grid;
      const bool spare = static_cast<std::int64_t>(i) >= used * w;
      codes[i] = spare ? 0x7f : code_of(d, number);
      values.push_back(value_of(d, codes[i]));
    }
  }
  double at(std::int64_t row, std::int64_t column) const {
    return values[static_cast<std::size_t>(row * columns + column)];
  }
  Values transposed() const {
    Values out;
    for (std::int64_t column = 0; column < columns; ++column) {
      for (std::int64_t row = 0; row < rows; ++row)
        out.push_back(codes[static_cast<std::size_t>(row * columns + column)]);
    }
    return out;
  }
};

std::vector<std::int64_t> group_of_rows(const Fp8Case& c) {
  std::vector<std::int64_t> group;
  for (std::int64_t g = 0; g < c.count(); ++g) {
    group.insert(group.end(), static_cast<std::size_t>(c.groups[static_cast<std::size_t>(g)] * kGroupRows), g);
  }
  return group;
}

// What tensor cores may drop of a sum of `terms` terms, of which the largest is `largest`; check_case() divides by 256.
double dropped(const Fp8Case& c, double largest, std::int64_t terms, double factor) {
  return c.integers ? 0 : 256.0 / (1 << 13) * std::abs(factor) * largest * static_cast<double>(terms);
}

template <class Args>
void set_scales(World& world, const Fp8Case& c, Args& args) {
  if (!c.scales) return;
  args.scale_a = world.in(DType::f32, {1}, {c.scale_a()});
  const Values each = c.scales_b();
  args.scale_b = world.in(DType::f32, {static_cast<std::int64_t>(each.size())}, each);
}

double result_of(const Fp8Case& c, double sum) {
  return c.integers ? rounded(sum, c.out) : sum;
}

Case make_rows_case(const Fp8Case& c) {
  const Matrix a(c, c.rows(), c.k, c.used(), c.a, 1), b(c, c.count() * c.n, c.k, c.count() * c.n, kE4m3, 2);
  Values before = random_values(c.rows() * c.n, 3, c.out);
  for (double& value : before) value = c.integers ? std::round(value) : value;
  const auto group = group_of_rows(c);
  Values expected, magnitudes;
  for (std::int64_t r = 0; r < c.used(); ++r) {
    const std::int64_t g = group[static_cast<std::size_t>(r)];
    for (std::int64_t j = 0; j < c.n; ++j) {
      double sum = 0, largest = 0;
      for (std::int64_t l = 0; l < c.k; ++l) {
        const double term = a.at(r, l) * b.at(g * c.n + j, l);
        sum += term;
        largest = std::max(largest, std::abs(term));
      }
      const double old = c.accumulate ? before[static_cast<std::size_t>(r * c.n + j)] : 0;
      expected.push_back(result_of(c, c.factor(g) * sum + old));
      magnitudes.push_back(dropped(c, largest, c.k, c.factor(g)));
    }
  }
  const auto spare = before.begin() + static_cast<std::ptrdiff_t>(c.used() * c.n);
  const std::vector<Values> results = {expected, Values(spare, before.end())};
  const auto run = [=](World& world) -> std::vector<Values> {
    GroupedGemm args{.a = world.in(c.a, {c.rows(), c.k}, a.codes, c.pad),
                     .b = world.in(kE4m3, {c.count(), c.n, c.k}, b.codes),
                     .c = c.accumulate ? world.in_out(c.out, {c.rows(), c.n}, before, 2 * c.pad)
                                       : world.out(c.out, {c.rows(), c.n}, 2 * c.pad, before),
                     .offsets = world.in(DType::i32, {c.count() + 1}, c.offsets()),
                     .transpose_b = true,
                     .accumulate = c.accumulate,
                     .flops = 1};
    set_scales(world, c, args);
    args.workspace = world.workspace(grouped_gemm_workspace(args, world.stream().target()));
    grouped_gemm(world.stream(), args);
    const Values got = world.values(args.c);
    if (world.meta()) return results;
    const auto middle = got.begin() + static_cast<std::ptrdiff_t>(c.used() * c.n);
    return {Values(got.begin(), middle), Values(middle, got.end())};
  };
  return {name_of("grouped_gemm", c), run, results, c.tolerance(), {magnitudes}};
}

// n columns of B, k of A, which is E5M2.
Case make_weight_case(const Fp8Case& c) {
  const Matrix a(c, c.rows(), c.k, c.used(), kE5m2, 1), b(c, c.rows(), c.n, c.used(), kE4m3, 2);
  Values before = random_values(c.count() * c.k * c.n, 3, c.out);
  for (double& value : before) value = c.integers ? std::round(value) : value;
  Values expected, magnitudes;
  const Values ends = c.offsets();
  for (std::int64_t g = 0; g < c.count(); ++g) {
    const auto begin = static_cast<std::int64_t>(ends[static_cast<std::size_t>(g)]),
               end = static_cast<std::int64_t>(ends[static_cast<std::size_t>(g) + 1]);
    for (std::int64_t i = 0; i < c.k; ++i) {
      for (std::int64_t j = 0; j < c.n; ++j) {
        double sum = 0, largest = 0;
        for (std::int64_t r = begin; r < end; ++r) {
          const double term = a.at(r, i) * b.at(r, j);
          sum += term;
          largest = std::max(largest, std::abs(term));
        }
        expected.push_back(result_of(c, c.factor(g) * sum + (c.accumulate ? before[expected.size()] : 0)));
        magnitudes.push_back(dropped(c, largest, end - begin, c.factor(g)));
      }
    }
  }
  const Values a_codes = a.transposed(), b_codes = b.transposed();
  const auto run = [=](World& world) -> std::vector<Values> {
    const Shape shape{c.count(), c.k, c.n};
    GroupedWeightGradient args{.a = world.in(kE5m2, {c.k, c.rows()}, a_codes, c.pad),
                               .b = world.in(kE4m3, {c.n, c.rows()}, b_codes, 3 * c.pad),
                               .c = c.accumulate ? world.in_out(c.out, shape, before) : world.out(c.out, shape),
                               .offsets = world.in(DType::i32, {c.count() + 1}, c.offsets()),
                               .accumulate = c.accumulate,
                               .flops = 1};
    set_scales(world, c, args);
    args.workspace = world.workspace(grouped_gemm_workspace(args, world.stream().target()));
    grouped_weight_gradient(world.stream(), args);
    return {world.values(args.c)};
  };
  return {name_of("grouped_weight_gradient", c), run, {expected}, c.tolerance(), {magnitudes}};
}

void check_both(const Fp8Case& c) {
  check_case(make_rows_case(c));
  if (c.a == kE5m2) check_case(make_weight_case(c));
}

TEST(GroupedFp8, IsExactForWholeNumbers) {
  struct Form {
    DType a, out;
    bool accumulate;
  };
  for (const Form& form :
       {Form{kE4m3, DType::f32, false}, Form{kE4m3, DType::bf16, true}, Form{kE5m2, DType::f32, true},
        Form{kE5m2, DType::bf16, false}, Form{kE5m2, DType::bf16, true}}) {
    check_both({.groups = {1, 0, 1},
                .spare = 16,
                .n = 48,
                .k = 32,
                .a = form.a,
                .out = form.out,
                .accumulate = form.accumulate,
                .integers = true,
                .scale_each = form.out == DType::f32 || !form.accumulate,
                .pad = form.accumulate ? 16 : 0});
  }
  check_both({.groups = {0, 0, 3, 0}, .spare = 256, .n = 16, .k = 16, .a = kE5m2, .integers = true});
  check_both({.groups = {0, 0}, .spare = 16, .n = 16, .k = 16, .a = kE5m2, .accumulate = true, .integers = true});
  check_both({.groups = {1}, .n = 16, .k = 48, .a = kE5m2, .integers = true, .scales = false});
}

// Tiles of 128 x 128 with sums in steps of 128: more of them than clusters run at a time, parts of tiles, and groups
// without rows at both ends.
TEST(GroupedFp8, DividesGroupsIntoTiles) {
  for (const DType out : {DType::bf16, DType::f32}) {
    check_both({.groups = {0, 1, 0, 2, 0},
                .spare = 128,
                .n = 272,
                .k = 336,
                .a = out == DType::bf16 ? kE4m3 : kE5m2,
                .out = out,
                .accumulate = out == DType::f32,
                .integers = true,
                .pad = 16});
  }
  check_both({.groups = {1, 11, 2}, .n = 32, .k = 16, .a = kE5m2, .out = DType::bf16, .integers = true});
  std::vector<std::int64_t> many;
  for (std::int64_t g = 0; g < 90; ++g) many.push_back(g % 5 == 3 ? 0 : g % 3 + 1);
  check_both({.groups = many, .n = 16, .k = 16, .a = kE5m2, .out = DType::f32, .integers = true});
}

TEST(GroupedFp8, AgreesWithFloat64) {
  for (const DType out : {DType::bf16, DType::f32}) {
    check_both({.groups = {2, 0, 1},
                .spare = 128,
                .n = 144,
                .k = 80,
                .a = kE5m2,
                .out = out,
                .accumulate = out == DType::f32});
  }
}

// The bits of the same GEMM of float32 operands, which have the values of the FP8 ones. Sums of multiples of 2^-12 are
// exact here: grouped_weight_gradient reads FP8 from transposed matrices, and may sum in another order.
void expect_float32_bits(const Fp8Case& c, bool weight_gradient) {
  const Matrix a(c, c.rows(), c.k, c.used(), kE5m2, 1), b(c, c.count() * c.n, c.k, c.count() * c.n, kE4m3, 2),
      x(c, c.rows(), c.n, c.used(), kE4m3, 4);
  World world(DeviceKind::cpu, 1);
  const TensorView offsets = world.in(DType::i32, {3}, c.offsets());
  const auto of = [&](bool fp8) {
    const DType dy = fp8 ? kE5m2 : DType::f32, w = fp8 ? kE4m3 : DType::f32;
    GroupedGemm rows{.a = world.in(dy, {c.rows(), c.k}, fp8 ? a.codes : a.values),
                     .b = world.in(w, {2, c.n, c.k}, fp8 ? b.codes : b.values),
                     .c = world.out(DType::f32, {c.rows(), c.n}),
                     .offsets = offsets,
                     .transpose_b = true};
    rows.workspace = world.workspace(grouped_gemm_workspace(rows));
    grouped_gemm(world.stream(), rows);
    GroupedWeightGradient weights{
        .a = fp8 ? world.in(dy, {c.k, c.rows()}, a.transposed()) : world.in(dy, {c.rows(), c.k}, a.values),
        .b = fp8 ? world.in(w, {c.n, c.rows()}, x.transposed()) : world.in(w, {c.rows(), c.n}, x.values),
        .c = world.out(DType::f32, {2, c.k, c.n}),
        .offsets = offsets};
    weights.workspace = world.workspace(grouped_gemm_workspace(weights));
    grouped_weight_gradient(world.stream(), weights);
    return std::array{world.values(rows.c), world.values(weights.c)};
  };
  const auto got = of(true), expected = of(false);
  expect_same_bits(got[0], expected[0], "grouped_gemm");
  if (weight_gradient) expect_same_bits(got[1], expected[1], "grouped_weight_gradient");
}

TEST(GroupedFp8, ComputesAsFloat32OfItsValues) {
  Fp8Case c{.groups = {1, 2}, .n = 32, .k = 48, .a = kE5m2, .scales = false};
  expect_float32_bits(c, false);
  c.grid = 0x1p-6;
  expect_float32_bits(c, true);
}

TEST(GroupedFp8, RejectsWhatNoTensorCoreReads) {
  MetaDevice device(DeviceKind::cuda);
  const auto stream = device.make_stream("meta");
  const auto make = [&](DType dtype, const Shape& shape) {
    return TensorView(device.allocate(shape.elements() * size_of(dtype)), dtype, shape, DeviceKind::meta);
  };
  const TensorView offsets = make(DType::i32, {3}), scale = make(DType::f32, {1});
  const auto rows = [&](DType a, DType b, std::int64_t k, bool transpose_b, std::int64_t scales = 2) {
    grouped_gemm(*stream, {.a = make(a, {256, k}),
                           .b = make(b, transpose_b ? Shape{2, 16, k} : Shape{2, k, 16}),
                           .c = make(DType::bf16, {256, 16}),
                           .offsets = offsets,
                           .transpose_b = transpose_b,
                           .scale_a = scale,
                           .scale_b = make(DType::f32, {scales})});
  };
  rows(kE5m2, kE4m3, 32, true);
  rows(kE4m3, kE4m3, 32, true, 1);
  expect_rejected([&] { rows(kE4m3, kE5m2, 32, true); }, "float8_e4m3fn times float8_e5m2");
  expect_rejected([&] { rows(kE4m3, DType::bf16, 32, true); }, "float8_e4m3fn times bfloat16");
  expect_rejected([&] { rows(DType::bf16, DType::bf16, 32, true); }, "a scale of bfloat16");
  expect_rejected([&] { rows(kE4m3, kE4m3, 32, false); }, "FP8 without transpose_b");
  expect_rejected([&] { rows(kE4m3, kE4m3, 24, true); }, "rows must start at multiples of 16 bytes");
  expect_rejected([&] { rows(kE4m3, kE4m3, 32, true, 3); }, "scale_b has shape [3], not [2]");
  const auto weights = [&](DType a, std::int64_t n, std::int64_t r) {
    grouped_weight_gradient(*stream, {.a = make(a, {32, r}),
                                      .b = make(kE4m3, {n, r}),
                                      .c = make(DType::bf16, {2, 32, n}),
                                      .offsets = offsets,
                                      .scale_a = scale,
                                      .scale_b = scale});
  };
  weights(kE5m2, 16, 256);
  expect_rejected([&] { weights(kE4m3, 16, 256); }, "float8_e4m3fn times float8_e4m3fn");
  expect_rejected([&] { weights(kE5m2, 12, 256); }, "rows must start at multiples of 16 bytes");
}

}  // namespace grouped_fp8_cases
}  // namespace hawser::ops
