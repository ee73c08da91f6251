// GEMMs of FP8 matrices, with one scale for each matrix or with block scales.
#include <cmath>

#include "ops/gemm/gemm.h"
#include "ops/testing/case_support.h"
#include "tensor/fp8.h"

namespace hawser::ops {
namespace gemm_fp8_cases {

using namespace testing;

std::vector<Values> multiply(World& world, Gemm args) {
  args.workspace = world.workspace(gemm_workspace(args));
  gemm(world.stream(), args);
  return {world.values(args.c)};
}

// The forms of a Linear's three GEMMs, with bf16 and float32 results. Hopper's tensor cores align a few products to the
// largest of them and drop all but about 13 bits before they add to a float32 sum: a term loses up to 2^-13 of the
// largest.
TEST(Gemm, MultipliesFp8) {
  struct Form {
    DType a, b;
    bool accumulate;
    bool bias;
  };
  constexpr auto kE4m3 = DType::f8e4m3, kE5m2 = DType::f8e5m2;
  for (const Form& form : {Form{kE4m3, kE4m3, false, true}, Form{kE5m2, kE4m3, false, false},
                           Form{kE5m2, kE4m3, true, false}, Form{kE4m3, kE5m2, true, false}}) {
    for (const DType out : {DType::f32, DType::bf16}) {
      for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{48, 40, 64}, {1, 8, 16}, {130, 264, 272}}) {
        const auto codes = [](DType dtype, std::int64_t count, std::uint64_t seed) {
          Values numbers = random_values(count, seed, DType::f32);
          for (double& value : numbers) {
            value =
                dispatch_fp8(dtype, [&](auto tag) -> double { return decltype(tag)(static_cast<float>(value)).bits; });
          }
          return numbers;
        };
        const auto value_of = [](DType dtype, double code) {
          return dispatch_fp8(dtype, [&](auto tag) {
            tag.bits = static_cast<std::uint8_t>(code);
            return static_cast<double>(static_cast<float>(tag));
          });
        };
        const Values a = codes(form.a, m * k, 1), b = codes(form.b, n * k, 2), c = random_values(m * n, 3, out);
        const Values bias = random_values(n, 4, DType::bf16);
        Values expected, magnitudes;
        constexpr double kOfTerms = 256.0 / (1 << 13);  // check_case() divides by 256
        for (std::int64_t i = 0; i < m; ++i) {
          for (std::int64_t j = 0; j < n; ++j) {
            double sum = 0, largest = 0;
            for (std::int64_t l = 0; l < k; ++l) {
              const double term = value_of(form.a, a[i * k + l]) * value_of(form.b, b[j * k + l]);
              sum += term;
              largest = std::max(largest, std::abs(term));
            }
            expected.push_back(sum * 0.375 * -3 + (form.accumulate ? c[i * n + j] : 0) + (form.bias ? bias[j] : 0));
            magnitudes.push_back(kOfTerms * 0.375 * 3 * largest * static_cast<double>(k));
          }
        }
        check_case({cat("gemm ", m, "x", n, "x", k, " ", to_string(form.a), " times ", to_string(form.b), " to ",
                        to_string(out)),
                    [&](World& world) -> std::vector<Values> {
                      Gemm args{.a = world.in(form.a, {m, k}, a),
                                .b = world.in(form.b, {n, k}, b),
                                .c = form.accumulate ? world.in_out(out, {m, n}, c) : world.out(out, {m, n}),
                                .transpose_b = true,
                                .accumulate = form.accumulate,
                                .scale_a = world.in(DType::f32, {1}, {0.375}),
                                .scale_b = world.in(DType::f32, {1}, {-3})};
                      if (form.bias) args.bias = world.in(DType::bf16, {n}, bias);
                      return multiply(world, args);
                    },
                    {expected},
                    out == DType::bf16 ? kBf16Tolerance : 1e-5,
                    {magnitudes}});
      }
    }
  }
}

// Scales of blocks, of sizes that are no multiples of 128, in the forms of a Linear's three GEMMs. The scales are no
// powers of two and differ by more than an order of magnitude, so that one in another place is seen.
TEST(Gemm, MultipliesFp8WithScalesOfBlocks) {
  struct Form {
    DType a;
    ScaleKind scaling_b;
    bool accumulate, bias;
  };
  constexpr auto kE4m3 = DType::f8e4m3;
  for (const Form& form : {Form{kE4m3, ScaleKind::block128, false, true}, Form{kE4m3, ScaleKind::vec128, true, false},
                           Form{DType::f8e5m2, ScaleKind::block128, false, false}}) {
    for (const DType out : {DType::f32, DType::bf16}) {
      for (const auto& [m, n, k] : {std::array<std::int64_t, 3>{48, 40, 64}, {8, 8, 16}, {136, 264, 272}}) {
        const auto numbers = [](DType dtype, std::int64_t count, std::uint64_t seed) {
          Values values = random_values(count, seed, DType::f32), codes;
          for (double& value : values) {
            dispatch_fp8(dtype, [&](auto tag) {
              const decltype(tag) rounded(static_cast<float>(value));
              codes.push_back(rounded.bits);
              value = static_cast<float>(rounded);
            });
          }
          return std::pair(values, codes);
        };
        const auto scales = [](const Shape& shape, std::uint64_t seed) {
          Values values = random_values(shape.elements(), seed, DType::f32);
          for (double& scale : values) scale = static_cast<float>(std::exp2(2 * scale));
          return values;
        };
        const auto [a, a_codes] = numbers(form.a, m * k, 1);
        const auto [b, b_codes] = numbers(kE4m3, n * k, 2);
        const Shape of_a = scale_shape(ScaleKind::vec128, m, k), of_b = scale_shape(form.scaling_b, n, k);
        const Values scale_a = scales(of_a, 5), scale_b = scales(of_b, 6);
        const Values c = random_values(m * n, 3, out), bias = random_values(n, 4, DType::bf16);
        Values expected, magnitudes;
        constexpr double kOfTerms = 256.0 / (1 << 13);  // as in MultipliesFp8
        for (std::int64_t i = 0; i < m; ++i) {
          for (std::int64_t j = 0; j < n; ++j) {
            double sum = 0, largest = 0;
            for (std::int64_t l = 0; l < k; ++l) {
              const double term = a[i * k + l] * scale_a[scale_index(ScaleKind::vec128, m, k, i, l)] * b[j * k + l] *
                                  scale_b[scale_index(form.scaling_b, n, k, j, l)];
              sum += term;
              largest = std::max(largest, std::abs(term));
            }
            expected.push_back(sum + (form.accumulate ? c[i * n + j] : 0) + (form.bias ? bias[j] : 0));
            magnitudes.push_back(kOfTerms * largest * static_cast<double>(k));
          }
        }
        check_case({cat("gemm ", m, "x", n, "x", k, " ", to_string(form.a), ", 1x128 times ", to_string(form.scaling_b),
                        " to ", to_string(out)),
                    [&, a_codes = a_codes, b_codes = b_codes](World& world) -> std::vector<Values> {
                      Gemm args{.a = world.in(form.a, {m, k}, a_codes),
                                .b = world.in(kE4m3, {n, k}, b_codes),
                                .c = form.accumulate ? world.in_out(out, {m, n}, c) : world.out(out, {m, n}),
                                .transpose_b = true,
                                .accumulate = form.accumulate,
                                .scale_a = world.in(DType::f32, of_a, scale_a),
                                .scale_b = world.in(DType::f32, of_b, scale_b),
                                .scaling_a = ScaleKind::vec128,
                                .scaling_b = form.scaling_b};
                      if (form.bias) args.bias = world.in(DType::bf16, {n}, bias);
                      return multiply(world, args);
                    },
                    {expected},
                    out == DType::bf16 ? kBf16Tolerance : 1e-5,
                    {magnitudes}});
      }
    }
  }
}

// On the CPU, a matrix may have scales of blocks beside one with a single scale, or without.
TEST(Gemm, MultipliesOneMatrixWithScalesOfBlocks) {
  constexpr std::int64_t kM = 3, kN = 5, kK = 200;
  const Values a = random_values(kM * kK, 1), b = random_values(kN * kK, 2);
  const Shape shape = scale_shape(ScaleKind::block128, kN, kK);
  const Values scales = {3, 0.25, 0, 0};
  for (const double one : {0.0, 5.0}) {
    Values expected;
    for (std::int64_t i = 0; i < kM; ++i) {
      for (std::int64_t j = 0; j < kN; ++j) {
        double sum = 0;
        for (std::int64_t l = 0; l < kK; ++l) sum += a[i * kK + l] * b[j * kK + l] * scales[l / 128];
        expected.push_back(one != 0 ? one * sum : sum);
      }
    }
    World world(DeviceKind::cpu, 1);
    Gemm args{.a = world.in(DType::f32, {kM, kK}, a),
              .b = world.in(DType::f32, {kN, kK}, b),
              .c = world.out(DType::f32, {kM, kN}),
              .transpose_b = true,
              .scale_b = world.in(DType::f32, shape, scales),
              .scaling_b = ScaleKind::block128};
    if (one != 0) args.scale_a = world.in(DType::f32, {1}, {one});
    args.workspace = world.workspace(gemm_workspace(args));
    gemm(world.stream(), args);
    expect_close(world.values(args.c), expected, 1e-5, cat("one scale ", one));
  }
}

TEST(Gemm, RejectsFp8ThatTensorCoresCannotRead) {
  MetaDevice device(DeviceKind::cuda);
  const auto stream = device.make_stream("meta");
  const auto make = [&](DType dtype, const Shape& shape) {
    return TensorView(device.allocate(shape.elements() * size_of(dtype)), dtype, shape, DeviceKind::meta);
  };
  const auto call = [&](DType a, DType b, std::int64_t k, bool transpose_b) {
    gemm(*stream, {.a = make(a, {32, k}),
                   .b = make(b, transpose_b ? Shape{16, k} : Shape{k, 16}),
                   .c = make(DType::bf16, {32, 16}),
                   .transpose_b = transpose_b});
  };
  constexpr auto kE4m3 = DType::f8e4m3, kE5m2 = DType::f8e5m2;
  call(kE5m2, kE4m3, 32, true);
  expect_rejected([&] { call(kE5m2, kE5m2, 32, true); }, "float8_e5m2 times float8_e5m2 has no backend for cuda");
  expect_rejected([&] { call(kE4m3, DType::bf16, 32, true); }, "float8_e4m3fn times bfloat16 has no backend for cuda");
  expect_rejected([&] { call(kE4m3, kE4m3, 32, false); }, "along K only");
  expect_rejected([&] { call(kE4m3, kE4m3, 24, true); }, "must be multiples of 16");
  const auto scaled = [&](ScaleKind a, ScaleKind b, std::int64_t rows) {
    gemm(*stream, {.a = make(kE4m3, {rows, 256}),
                   .b = make(kE4m3, {16, 256}),
                   .c = make(DType::bf16, {rows, 16}),
                   .transpose_b = true,
                   .scale_a = make(DType::f32, scale_shape(a, rows, 256)),
                   .scale_b = make(DType::f32, scale_shape(b, 16, 256)),
                   .scaling_a = a,
                   .scaling_b = b});
  };
  constexpr auto kOne = ScaleKind::one, kVec = ScaleKind::vec128, kBlock = ScaleKind::block128;
  scaled(kVec, kBlock, 32);
  scaled(kVec, kVec, 32);
  expect_rejected([&] { scaled(kBlock, kBlock, 32); }, "128x128 scales times 128x128 scales has no backend for cuda");
  expect_rejected([&] { scaled(kVec, kOne, 32); }, "1x128 scales times one scale has no backend for cuda");
  expect_rejected([&] { scaled(kVec, kBlock, 12); }, "12 rows, which must be a multiple of 8");
}

}  // namespace gemm_fp8_cases
}  // namespace hawser::ops
