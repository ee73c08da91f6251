#include "ops/gemm/gemm.h"

#include <optional>
#include <sstream>

#include "ops/gemm/gemm_key.h"
#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace gemm_cases {

using namespace testing;

struct GemmCase {
  std::int64_t m, n, k;
  DType in = DType::f32, out = DType::f32;
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false;
  std::int64_t pad = 0;
  double scale_a = 0, scale_b = 0;  // 0: none
  std::optional<DType> in_b = {};   // absent: in
};

std::string name_of(const GemmCase& c) {
  return cat("gemm ", c.m, "x", c.n, "x", c.k, " ", to_string(c.in), "->", to_string(c.out), c.transpose_a ? " aT" : "",
             c.transpose_b ? " bT" : "", c.accumulate ? " accumulate" : "", c.bias ? " bias" : "", " pad ", c.pad,
             c.scale_a != 0 ? " scale a" : "", c.scale_b != 0 ? " scale b" : "",
             c.in_b ? cat(" b ", to_string(*c.in_b)) : "");
}

Case make_case(const GemmCase& g) {
  const DType in_b = g.in_b.value_or(g.in);
  const auto a = random_values(g.m * g.k, 1, g.in), b = random_values(g.k * g.n, 2, in_b);
  const auto c = random_values(g.m * g.n, 3, g.out), bias = random_values(g.n, 4, g.in);
  Values expected(static_cast<std::size_t>(g.m * g.n));
  for (std::int64_t i = 0; i < g.m; ++i) {
    for (std::int64_t j = 0; j < g.n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < g.k; ++l) {
        sum += a[g.transpose_a ? l * g.m + i : i * g.k + l] * b[g.transpose_b ? j * g.k + l : l * g.n + j];
      }
      if (g.scale_a != 0) sum *= g.scale_a;
      if (g.scale_b != 0) sum *= g.scale_b;
      expected[static_cast<std::size_t>(i * g.n + j)] =
          sum + (g.accumulate ? c[i * g.n + j] : 0.0) + (g.bias ? bias[j] : 0.0);
    }
  }
  const auto run = [=](World& world) -> std::vector<Values> {
    const Shape a_shape = g.transpose_a ? Shape{g.k, g.m} : Shape{g.m, g.k};
    const Shape b_shape = g.transpose_b ? Shape{g.n, g.k} : Shape{g.k, g.n};
    Gemm args{
        .a = world.in(g.in, a_shape, a, g.pad),
        .b = world.in(in_b, b_shape, b, 2 * g.pad),
        .c = g.accumulate ? world.in_out(g.out, {g.m, g.n}, c, 3 * g.pad) : world.out(g.out, {g.m, g.n}, 3 * g.pad),
        .transpose_a = g.transpose_a,
        .transpose_b = g.transpose_b,
        .accumulate = g.accumulate};
    if (g.bias) args.bias = world.in(g.in, {g.n}, bias);
    if (g.scale_a != 0) args.scale_a = world.in(DType::f32, {1}, {g.scale_a});
    if (g.scale_b != 0) args.scale_b = world.in(DType::f32, {1}, {g.scale_b});
    args.workspace = world.workspace(gemm_workspace(args));
    gemm(world.stream(), args);
    return {world.values(args.c)};
  };
  return {name_of(g), run, {expected}, g.out == DType::bf16 ? kBf16Tolerance : 1e-5};
}

// GEMMs with few rows have a separate kernel; sizes on both sides of its limits.
TEST(Gemm, FewRowsAgreeWithFloat64) {
  for (const DType in : {DType::f32, DType::bf16}) {
    for (const DType out : {DType::f32, DType::bf16}) {
      for (const std::int64_t m : {1, 2, 5, 9, 32, 33}) {
        for (const std::int64_t n : {1, 9, 75}) {
          for (const std::int64_t k : {5, 16, 67}) {
            const bool odd = (m + n + k) % 2 == 1;
            check_case(make_case({.m = m,
                                  .n = n,
                                  .k = k,
                                  .in = in,
                                  .out = out,
                                  .transpose_b = true,
                                  .accumulate = odd,
                                  .bias = m % 2 == 1,
                                  .pad = odd ? 3 : 0}));
          }
        }
      }
    }
  }
}

// Generation relies on this: a row's bits do not depend on the other rows.
TEST(Gemm, FewRowsDoNotDependOnOneAnother) {
  constexpr std::int64_t kRows = 32, kN = 131, kK = 77;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    World world(DeviceKind::cpu, 2);
    const TensorView a = world.in(dtype, {kRows, kK}, random_values(kRows * kK, 1, dtype)),
                     b = world.in(dtype, {kN, kK}, random_values(kN * kK, 2, dtype));
    const auto run_rows = [&](std::int64_t begin, std::int64_t rows) {
      const TensorView c = world.out(DType::f32, {rows, kN});
      gemm(world.stream(), {.a = a.rows(begin, rows), .b = b, .c = c, .transpose_b = true});
      return world.values(c);
    };
    const Values all = run_rows(0, kRows);
    for (const std::int64_t rows : {1, 2, 3, 7, 16}) {
      for (std::int64_t begin = 0; begin + rows <= kRows; begin += 5) {
        EXPECT_EQ(run_rows(begin, rows), Values(all.begin() + begin * kN, all.begin() + (begin + rows) * kN));
      }
    }
  }
}

TEST(Gemm, AgreesWithFloat64) {
  for (const DType in : {DType::f32, DType::bf16}) {
    for (const DType out : {DType::f32, DType::bf16}) {
      for (const bool accumulate : {false, true}) {
        for (const bool bias : {false, true}) {
          for (const int transposes : {0, 1, 2, 3}) {
            check_case(make_case({.m = 7,
                                  .n = 19,
                                  .k = 33,
                                  .in = in,
                                  .out = out,
                                  .transpose_a = (transposes & 1) != 0,
                                  .transpose_b = (transposes & 2) != 0,
                                  .accumulate = accumulate,
                                  .bias = bias,
                                  .pad = 5}));
          }
        }
      }
      check_case(make_case({.m = 64, .n = 96, .k = 128, .in = in, .out = out, .transpose_b = true, .bias = true}));
      check_case(make_case({.m = 1, .n = 64, .k = 48, .in = in, .out = out, .transpose_b = true}));
      check_case(make_case({.m = 65, .n = 1, .k = 1, .in = in, .out = out}));
      check_case(
          make_case({.m = 130, .n = 97, .k = 300, .in = in, .out = out, .transpose_a = true, .accumulate = true}));
    }
  }
}

TEST(Gemm, AnEmptySumGivesTheBias) {
  for (const DeviceKind kind : devices()) {
    for (const bool accumulate : {false, true}) {
      World world(kind, 1);
      const TensorView c = world.in_out(DType::f32, {2, 3}, {1, 2, 3, 4, 5, 6});
      const TensorView bias = world.in(DType::f32, {3}, {10, 20, 30});
      const TensorView a = world.in(DType::f32, {2, 0}, {}), b = world.in(DType::f32, {0, 3}, {});
      gemm(world.stream(), {.a = a, .b = b, .c = c, .accumulate = accumulate, .bias = bias});
      EXPECT_EQ(world.values(c), accumulate ? (Values{11, 22, 33, 14, 25, 36}) : (Values{10, 20, 30, 10, 20, 30}));
    }
  }
}

// Shapes of a training step, and long sums, which oneDNN would split by its number of threads.
TEST(Gemm, ThreadsDoNotChangeTheBits) {
  struct Large {
    std::int64_t m, n, k;
    bool transpose_a, transpose_b;
  };
  for (const DType in : {DType::f32, DType::bf16}) {
    for (const Large& s : {Large{128, 576, 576, false, true},
                           {384, 320, 2048, false, true},
                           {192, 576, 1024, true, false},
                           {64, 64, 20000, true, false},
                           {2, 10, 49152, false, false},
                           {520, 33, 300, false, false},
                           {3, 960, 576, false, true}}) {
      const auto a = random_values(s.m * s.k, 1, in), b = random_values(s.k * s.n, 2, in);
      std::vector<Values> results;
      for (const int threads : {1, 2, 8}) {
        World world(DeviceKind::cpu, threads);
        Gemm args{.a = world.in(in, s.transpose_a ? Shape{s.k, s.m} : Shape{s.m, s.k}, a),
                  .b = world.in(in, s.transpose_b ? Shape{s.n, s.k} : Shape{s.k, s.n}, b),
                  .c = world.out(DType::f32, {s.m, s.n}),
                  .transpose_a = s.transpose_a,
                  .transpose_b = s.transpose_b};
        args.workspace = world.workspace(gemm_workspace(args));
        gemm(world.stream(), args);
        results.push_back(world.values(args.c));
      }
      EXPECT_EQ(results[0], results[1]) << s.m << " " << s.n << " " << s.k << " " << to_string(in);
      EXPECT_EQ(results[0], results[2]) << s.m << " " << s.n << " " << s.k << " " << to_string(in);
    }
  }
}

// 0.375 and -3: a scale of C, or of a sum that is rounded already, gives other values.
TEST(Gemm, MultipliesTheSumByBothScales) {
  for (const DType in : {DType::f32, DType::bf16}) {
    for (const DType out : {DType::f32, DType::bf16}) {
      for (const bool accumulate : {false, true}) {
        for (const std::int64_t m : {1, 37}) {
          check_case(make_case({.m = m,
                                .n = 20,
                                .k = 33,
                                .in = in,
                                .out = out,
                                .transpose_b = true,
                                .accumulate = accumulate,
                                .bias = true,
                                .pad = 3,
                                .scale_a = 0.375,
                                .scale_b = -3}));
        }
        check_case(make_case({.m = 12, .n = 40, .k = 8, .in = in, .out = out, .accumulate = accumulate, .scale_a = 5}));
        check_case(make_case({.m = 40,
                              .n = 12,
                              .k = 50,
                              .in = in,
                              .out = out,
                              .transpose_a = true,
                              .accumulate = accumulate,
                              .scale_b = -0.3}));
      }
    }
  }
}

// The sum is 16700. If it is rounded to bf16 before the scales, or its product before the bias or C is added, or if C
// is multiplied too, the result is another bf16 number.
TEST(Gemm, RoundsOnceWithScales) {
  for (const bool accumulate : {false, true}) {
    World world(DeviceKind::cpu, 1);
    const TensorView c = world.in_out(DType::bf16, {1, 2}, {100, -100});
    Gemm args{.a = world.in(DType::bf16, {1, 2}, {129, 59}),
              .b = world.in(DType::bf16, {2, 2}, {129, -129, 1, -1}),
              .c = c,
              .accumulate = accumulate,
              .bias = world.in(DType::f32, {2}, {-60, 60}),
              .scale_a = world.in(DType::f32, {1}, {0.75}),
              .scale_b = world.in(DType::f32, {1}, {4})};
    args.workspace = world.workspace(gemm_workspace(args));
    gemm(world.stream(), args);
    const double expected = accumulate ? 50176 : 49920;
    EXPECT_EQ(world.values(c), (Values{expected, -expected}));
  }
}

TEST(Gemm, MultipliesTwoDtypes) {
  for (const DType in : {DType::f32, DType::bf16}) {
    const DType in_b = in == DType::f32 ? DType::bf16 : DType::f32;
    for (const DType out : {DType::f32, DType::bf16}) {
      for (const std::int64_t m : {3, 41}) {
        for (const bool transpose : {false, true}) {
          check_case(make_case({.m = m,
                                .n = 20,
                                .k = 33,
                                .in = in,
                                .out = out,
                                .transpose_a = !transpose,
                                .transpose_b = transpose,
                                .accumulate = transpose,
                                .bias = true,
                                .pad = 3,
                                .scale_a = m == 3 ? 0.375 : 0,
                                .in_b = in_b}));
        }
      }
    }
  }
}

TEST(Gemm, RejectsScalesOfOtherShapesAndDtypes) {
  World world(DeviceKind::cpu, 1);
  const TensorView a = world.in(DType::f32, {129, 300}, Values(129 * 300)),
                   b = world.in(DType::f32, {40, 300}, Values(40 * 300)), c = world.out(DType::f32, {129, 40});
  const auto scale = [&](const Shape& shape) { return world.in(DType::f32, shape, Values(shape.elements())); };
  const auto call = [&](const TensorView& scale_a, ScaleKind kind_a, const TensorView& scale_b, ScaleKind kind_b) {
    gemm(world.stream(), {.a = a,
                          .b = b,
                          .c = c,
                          .transpose_b = true,
                          .scale_a = scale_a,
                          .scale_b = scale_b,
                          .scaling_a = kind_a,
                          .scaling_b = kind_b});
  };
  constexpr auto kOne = ScaleKind::one, kVec = ScaleKind::vec128, kBlock = ScaleKind::block128;
  expect_rejected([&] { call(scale({3, 132}), kOne, {}, kOne); }, "scale_a has shape");
  expect_rejected([&] { call(scale({129, 3}), kVec, {}, kOne); }, "scale_a has shape");
  expect_rejected([&] { call({}, kOne, scale({1, 3}), kBlock); }, "scale_b has shape");
  expect_rejected([&] { call({}, kVec, {}, kOne); }, "gemm: no scale_a, but 1x128 scales");
  expect_rejected([&] { call({}, kOne, world.in(DType::bf16, {1}, {1}), kOne); }, "scale_b is bfloat16");
}

// Lines of earlier versions have neither a dtype of B nor scales.
TEST(GemmKey, ReadsItsTextAndThatOfEarlierVersions) {
  const float scale = 1;
  const GemmProblem plain{.m = 7,
                          .n = 8,
                          .k = 9,
                          .lda = 9,
                          .ldb = 10,
                          .ldc = 11,
                          .in_a = DType::bf16,
                          .in_b = DType::bf16,
                          .out = DType::f32,
                          .transpose_b = true};
  GemmProblem mixed = plain, scaled = plain;
  mixed.in_b = DType::f32;
  scaled.scale_b = &scale;
  EXPECT_EQ(to_text(gemm_key(plain, true)), "7 8 9 9 10 11 1 0 0 0 1 0 1");
  EXPECT_EQ(to_text(gemm_key(mixed, true)), "mixed 0 0 0 7 8 9 9 10 11 1 0 0 0 1 0 1");
  EXPECT_EQ(to_text(gemm_key(scaled, false)), "mixed 1 0 1 7 8 9 9 10 11 1 0 0 0 1 0 0");
  std::vector<GemmKey> keys;
  for (const GemmProblem& p : {plain, mixed, scaled}) {
    std::istringstream in(to_text(gemm_key(p, true)) + " ff");
    GemmKey key;
    std::int64_t next = 0;
    ASSERT_TRUE(read_key(in, key) >> std::hex >> next);
    EXPECT_EQ(key, gemm_key(p, true));
    EXPECT_EQ(next, 255);
    keys.push_back(key);
  }
  // What a stored line may ask for: shapes, dtypes and flags that a GEMM can have.
  const std::optional<GemmProblem> again = problem_of(keys[0]);
  ASSERT_TRUE(again);
  EXPECT_EQ(gemm_key(*again, true), keys[0]);
  EXPECT_FALSE(problem_of(keys[2])) << "a scale is no number of a key";
  for (const std::size_t field : {0, 3, 6, 8, 9, 12}) {
    GemmKey bad = keys[0];
    bad.fields[field] = field == 0 ? 0 : field == 3 ? -1 : 99;
    EXPECT_FALSE(problem_of(bad)) << "field " << field;
  }
  EXPECT_NE(keys[0], keys[1]);
  EXPECT_NE(keys[0], keys[2]);
  GemmProblem blocks = plain;
  blocks.in_a = blocks.in_b = DType::f8e4m3;
  blocks.scale_a = blocks.scale_b = &scale;
  blocks.scaling_a = ScaleKind::vec128;
  blocks.scaling_b = ScaleKind::block128;
  EXPECT_EQ(to_text(gemm_key(blocks, true)).substr(0, 12), cat("mixed ", static_cast<int>(DType::f8e4m3), " 2 3 "));
  const std::optional<GemmProblem> stored = problem_of(gemm_key(blocks, true));
  ASSERT_TRUE(stored);
  EXPECT_EQ(stored->scaling_a, ScaleKind::vec128);
  EXPECT_EQ(stored->scaling_b, ScaleKind::block128);
  GemmKey unknown = gemm_key(blocks, true);
  unknown.scale_a = 4;
  EXPECT_FALSE(problem_of(unknown));
  for (const char* text : {"", "7 8 9", "mixed 0 0 7 8", "many 0 0 0 7 8 9 9 10 11 1 0 0 0 1 0 1"}) {
    std::istringstream in(text);
    GemmKey key;
    EXPECT_FALSE(read_key(in, key)) << text;
  }
}

TEST(Gemm, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView a = world.in(DType::f32, {2, 3}, Values(6)), b = world.in(DType::f32, {3, 4}, Values(12));
  const TensorView c = world.out(DType::f32, {2, 4});
  Stream& s = world.stream();
  expect_rejected([&] { gemm(s, {.a = a, .b = b, .c = world.out(DType::f32, {2, 5})}); }, "does not give c");
  expect_rejected([&] { gemm(s, {.a = a, .b = b, .c = c, .transpose_b = true}); }, "does not give c");
  expect_rejected([&] { gemm(s, {.a = a, .b = world.in(DType::i32, {3, 4}, Values(12)), .c = c}); }, "b is int32");
  expect_rejected([&] { gemm(s, {.a = a, .b = b, .c = world.out(DType::i32, {2, 4})}); }, "c is int32");
  expect_rejected([&] { gemm(s, {.a = a, .b = b, .c = c, .bias = world.in(DType::f32, {2}, Values(2))}); },
                  "bias has shape");
  expect_rejected([&] { gemm(s, {.a = a, .b = world.in(DType::f32, {3, 3}, Values(9)), .c = a}); }, "share memory");
  expect_rejected([&] { gemm(s, {.a = a, .b = b, .c = world.out(DType::bf16, {2, 4})}); }, "workspace is missing");
  expect_rejected([&] { gemm(s, {.a = TensorView(), .b = b, .c = c}); }, "not all matrices");
  World other(DeviceKind::meta, 1);
  expect_rejected([&] { gemm(other.stream(), {.a = a, .b = b, .c = c}); }, "given to stream");
}

TEST(BiasGradient, AgreesWithFloat64) {
  for (const DType act : {DType::f32, DType::bf16}) {
    for (const DType out : {DType::f32, DType::bf16}) {
      for (const int variant : {0, 1, 2, 3}) {
        const bool accumulate = variant % 2 == 1;
        const double scale = variant < 2 ? 1 : 0.7f;
        const std::int64_t t = 300, n = 83;
        const auto dy = random_values(t * n, 1, act), db = random_values(n, 2, out);
        Values expected = accumulate ? db : Values(static_cast<std::size_t>(n));
        for (std::int64_t i = 0; i < t * n; ++i)
          expected[static_cast<std::size_t>(i % n)] += scale * dy[static_cast<std::size_t>(i)];
        check_case({cat("bias_gradient ", to_string(act), variant),
                    [=](World& world) -> std::vector<Values> {
                      BiasGradient args{.dy = world.in(act, {t, n}, dy, 7), .accumulate = accumulate};
                      if (variant >= 2) args.scale = world.in(DType::f32, {1}, {scale});
                      args.db = accumulate ? world.in_out(out, {n}, db) : world.out(out, {n});
                      bias_gradient(world.stream(), args);
                      return {world.values(args.db)};
                    },
                    {expected},
                    out == DType::bf16 ? kBf16Tolerance : 2e-6});
      }
    }
  }
}

TEST(BiasGradient, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView dy = world.in(DType::f32, {2, 3}, Values(6));
  expect_rejected([&] { bias_gradient(world.stream(), {.dy = dy, .db = world.out(DType::f32, {2})}); }, "db has shape");
  expect_rejected([&] { bias_gradient(world.stream(), {.dy = dy}); }, "db is missing");
}

}  // namespace gemm_cases
}  // namespace hawser::ops
