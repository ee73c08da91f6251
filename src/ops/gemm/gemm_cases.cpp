#include "ops/gemm/gemm.h"

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace {

using namespace testing;

struct GemmCase {
  std::int64_t m, n, k;
  DType in = DType::f32, out = DType::f32;
  bool transpose_a = false, transpose_b = false, accumulate = false, bias = false;
  std::int64_t pad = 0;
  double scale = 0;  // 0: none
};

std::string name_of(const GemmCase& c) {
  return cat("gemm ", c.m, "x", c.n, "x", c.k, " ", to_string(c.in), "->", to_string(c.out), c.transpose_a ? " aT" : "",
             c.transpose_b ? " bT" : "", c.accumulate ? " accumulate" : "", c.bias ? " bias" : "", " pad ", c.pad,
             c.scale != 0 ? " scale" : "");
}

Case make_case(const GemmCase& g) {
  const auto a = random_values(g.m * g.k, 1, g.in), b = random_values(g.k * g.n, 2, g.in);
  const auto c = random_values(g.m * g.n, 3, g.out), bias = random_values(g.n, 4, g.in);
  Values expected(static_cast<std::size_t>(g.m * g.n));
  for (std::int64_t i = 0; i < g.m; ++i) {
    for (std::int64_t j = 0; j < g.n; ++j) {
      double sum = 0;
      for (std::int64_t l = 0; l < g.k; ++l) {
        sum += a[g.transpose_a ? l * g.m + i : i * g.k + l] * b[g.transpose_b ? j * g.k + l : l * g.n + j];
      }
      if (g.scale != 0) sum *= g.scale;
      expected[static_cast<std::size_t>(i * g.n + j)] =
          sum + (g.accumulate ? c[i * g.n + j] : 0.0) + (g.bias ? bias[j] : 0.0);
    }
  }
  const auto run = [=](World& world) -> std::vector<Values> {
    const Shape a_shape = g.transpose_a ? Shape{g.k, g.m} : Shape{g.m, g.k};
    const Shape b_shape = g.transpose_b ? Shape{g.n, g.k} : Shape{g.k, g.n};
    Gemm args{
        .a = world.in(g.in, a_shape, a, g.pad),
        .b = world.in(g.in, b_shape, b, 2 * g.pad),
        .c = g.accumulate ? world.in_out(g.out, {g.m, g.n}, c, 3 * g.pad) : world.out(g.out, {g.m, g.n}, 3 * g.pad),
        .transpose_a = g.transpose_a,
        .transpose_b = g.transpose_b,
        .accumulate = g.accumulate};
    if (g.bias) args.bias = world.in(g.in, {g.n}, bias);
    if (g.scale != 0) args.scale = world.in(DType::f32, {1}, {g.scale});
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

TEST(Gemm, MultipliesByAScaleBeforeTheBias) {
  for (const DType in : {DType::f32, DType::bf16}) {
    for (const DType out : {DType::f32, DType::bf16}) {
      for (const std::int64_t m : {1, 37}) {
        check_case(make_case({.m = m,
                              .n = 20,
                              .k = 33,
                              .in = in,
                              .out = out,
                              .transpose_b = true,
                              .bias = true,
                              .pad = 3,
                              .scale = 0.375}));
      }
      check_case(make_case({.m = 12, .n = 40, .k = 8, .in = in, .out = out, .scale = -2}));
    }
  }
}

TEST(Gemm, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView a = world.in(DType::f32, {2, 3}, Values(6)), b = world.in(DType::f32, {3, 4}, Values(12));
  const TensorView c = world.out(DType::f32, {2, 4});
  Stream& s = world.stream();
  expect_rejected([&] { gemm(s, {.a = a, .b = b, .c = world.out(DType::f32, {2, 5})}); }, "does not give c");
  expect_rejected([&] { gemm(s, {.a = a, .b = b, .c = c, .transpose_b = true}); }, "does not give c");
  expect_rejected([&] { gemm(s, {.a = a, .b = world.in(DType::bf16, {3, 4}, Values(12)), .c = c}); }, "b is bfloat16");
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
      for (const bool accumulate : {false, true}) {
        const std::int64_t t = 300, n = 83;
        const auto dy = random_values(t * n, 1, act), db = random_values(n, 2, out);
        Values expected = accumulate ? db : Values(static_cast<std::size_t>(n));
        for (std::int64_t i = 0; i < t * n; ++i)
          expected[static_cast<std::size_t>(i % n)] += dy[static_cast<std::size_t>(i)];
        check_case({cat("bias_gradient ", to_string(act), accumulate),
                    [=](World& world) -> std::vector<Values> {
                      BiasGradient args{.dy = world.in(act, {t, n}, dy, 7), .accumulate = accumulate};
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

}  // namespace
}  // namespace hawser::ops
