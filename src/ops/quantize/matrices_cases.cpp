#include "ops/quantize/matrices.h"

#include <limits>

#include "ops/quantize/quantize.h"
#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace parts_cases {

using namespace testing;

struct Layout {
  const char* name;
  std::int64_t elements, values;
  std::vector<EqualMatrices> matrices;
};

// A list that is longer than what one kernel takes; its matrices are in reverse order of their indices, with gaps.
std::vector<EqualMatrices> many_runs() {
  std::vector<EqualMatrices> matrices;
  for (std::int64_t i = 0; i < 40; ++i)
    matrices.push_back({.begin = 3 + 37 * i, .size = 5 + i % 30, .count = 1, .first = 39 - i});
  return matrices;
}

std::vector<Layout> layouts() {
  return {{"one matrix", 1000, 1, {{0, 1000, 1, 0}}},
          {"no matrix", 300, 2, {}},
          {"cut on both sides", 20000, 6, {{-5000, 9000, 3, 1}}},
          {"all outside", 64, 3, {{-100, 50, 2, 0}, {64, 8, 1, 2}}},
          {"small matrices, gaps", 9001, 30, {{7, 11, 20, 3}, {512, 4, 2, 0}, {600, 8401, 1, 2}}},
          {"large matrices", 70000, 9, {{128, 4096, 3, 5}, {12544, 16384, 3, 0}, {61824, 9000, 1, 8}}},
          {"many runs", 1500, 40, many_runs()}};
}

// The index of the matrix of each element, or -1, without each_matrix().
std::vector<std::int64_t> parts_of_elements(const Layout& layout) {
  std::vector<std::int64_t> of(static_cast<std::size_t>(layout.elements), -1);
  for (const EqualMatrices& run : layout.matrices) {
    for (std::int64_t i = 0; i < run.size * run.count; ++i) {
      const std::int64_t at = run.begin + i;
      if (at >= 0 && at < layout.elements) of[static_cast<std::size_t>(at)] = run.first + i / run.size;
    }
  }
  return of;
}

Values values_of(const Layout& layout, DType dtype) {
  Values x = random_values(layout.elements, 5, dtype);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = rounded(x[i] * std::exp2(static_cast<double>(i % 24) - 16), dtype);
  return x;
}

TEST(Matrices, AmaxesAreThoseOfEachPart) {
  for (const Layout& layout : layouts()) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const Values x = values_of(layout, dtype);
      const std::vector<std::int64_t> of = parts_of_elements(layout);
      Values expected(static_cast<std::size_t>(layout.values));
      for (std::size_t i = 0; i < x.size(); ++i) {
        if (of[i] >= 0)
          expected[static_cast<std::size_t>(of[i])] =
              std::max(expected[static_cast<std::size_t>(of[i])], std::abs(x[i]));
      }
      check_case({cat("amax_of_matrices ", layout.name, " ", to_string(dtype)),
                  [&](World& world) -> std::vector<Values> {
                    const AmaxOfMatrices args{.x = world.in(dtype, {layout.elements}, x),
                                              .amax = world.out(DType::f32, {layout.values}),
                                              .matrices = layout.matrices};
                    amax_of_matrices(world.stream(), args);
                    return {world.values(args.amax)};
                  },
                  {expected},
                  0});
    }
  }
}

TEST(Matrices, AreQuantizedWithTheirScales) {
  for (const Layout& layout : layouts()) {
    for (const DType in : {DType::f32, DType::bf16}) {
      for (const DType out : {DType::f8e4m3, DType::f8e5m2}) {
        const Values x = values_of(layout, in);
        const std::vector<std::int64_t> of = parts_of_elements(layout);
        Values scales, expected;
        for (std::int64_t p = 0; p < layout.values; ++p) scales.push_back(0.01f * static_cast<float>(p + 1));
        for (std::size_t i = 0; i < x.size(); ++i) {
          const float inverse = of[i] < 0 ? 0 : 1.0f / static_cast<float>(scales[static_cast<std::size_t>(of[i])]);
          expected.push_back(of[i] < 0 ? 0 : dispatch_fp8(out, [&](auto tag) {
            return static_cast<double>(decltype(tag)(static_cast<float>(x[i]) * inverse).bits);
          }));
        }
        check_case({cat("quantize_matrices ", layout.name, " ", to_string(in), " to ", to_string(out)),
                    [&](World& world) -> std::vector<Values> {
                      const QuantizeMatrices args{.x = world.in(in, {layout.elements}, x),
                                                  .scales = world.in(DType::f32, {layout.values}, scales),
                                                  .q = world.out(out, {layout.elements}),
                                                  .matrices = layout.matrices};
                      quantize_matrices(world.stream(), args);
                      return {world.values(args.q)};
                    },
                    {expected},
                    0});
      }
    }
  }
}

// Matrices at odd elements of a larger tensor, with infinities, NaN and all magnitudes: the bits of ops::amax and
// ops::quantize of each matrix, and nothing of what is between matrices.
TEST(Matrices, HaveTheBitsOfOpsOnOnePart) {
  constexpr std::int64_t kCount = 3, kSize = 5003, kAt = 13;
  for (const DeviceKind device : devices()) {
    for (const DType in : {DType::f32, DType::bf16}) {
      World world(device, 2);
      Values x = random_values(kAt + kCount * kSize, 3, in);
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = rounded(x[i] * std::exp2(static_cast<double>(i % 40) - 20), in);
      x[2] = x[kAt + 2 * kSize + 7] = std::numeric_limits<double>::quiet_NaN();
      x[kAt + kSize + 1] = -std::numeric_limits<double>::infinity();
      const TensorView all = world.in(in, {kAt + kCount * kSize}, x).rows(1, kAt - 1 + kCount * kSize),
                       scales = world.in(DType::f32, {kCount}, {0.5, 0.3, 7}), amax = world.out(DType::f32, {kCount}),
                       amax_alone = world.out(DType::f32, {kCount}), q = world.out(DType::f8e4m3, {all.elements()}),
                       q_alone = world.in_out(DType::f8e4m3, {all.elements()},
                                              Values(static_cast<std::size_t>(all.elements())));
      const std::vector<EqualMatrices> matrices{{.begin = kAt - 1, .size = kSize, .count = kCount}};
      amax_of_matrices(world.stream(), {.x = all, .amax = amax, .matrices = matrices});
      quantize_matrices(world.stream(), {.x = all, .scales = scales, .q = q, .matrices = matrices});
      for (std::int64_t p = 0; p < kCount; ++p) {
        const TensorView x_of = all.rows(kAt - 1 + p * kSize, kSize);
        ops::amax(world.stream(), {.x = x_of, .out = amax_alone.rows(p, 1)});
        quantize(world.stream(), {.x = x_of.reshape({1, kSize}),
                                  .scale = scales.rows(p, 1),
                                  .q = q_alone.rows(kAt - 1 + p * kSize, kSize).reshape({1, kSize})});
      }
      expect_same_bits(world.values(amax), world.values(amax_alone), "amax");
      expect_same_bits(world.values(q), world.values(q_alone), "q");
    }
  }
}

TEST(Matrices, RejectsListsOfOtherRanges) {
  World world(DeviceKind::cpu, 1);
  const TensorView x = world.in(DType::f32, {64}, Values(64)), two = world.out(DType::f32, {2});
  const auto rejected = [&](const std::vector<EqualMatrices>& matrices, const std::string& matrix) {
    expect_rejected([&] { amax_of_matrices(world.stream(), {.x = x, .amax = two, .matrices = matrices}); }, matrix);
    expect_rejected(
        [&] {
          quantize_matrices(world.stream(),
                            {.x = x, .scales = two, .q = world.out(DType::f8e4m3, {64}), .matrices = matrices});
        },
        matrix);
  };
  rejected({{0, 8, 3, 0}}, "matrices [0, 3) of 2");
  rejected({{0, 8, 1, -1}}, "matrices [-1, 0) of 2");
  rejected({{0, 0, 1, 0}}, "1 matrices of 0 elements");
  rejected({{0, 8, 1, 0}, {7, 8, 1, 1}}, "overlap those before");
  expect_rejected([&] { amax_of_matrices(world.stream(), {.x = x, .amax = x.rows(0, 2)}); }, "share memory");
  expect_rejected([&] { quantize_matrices(world.stream(), {.x = x, .scales = two, .q = x}); }, "q is float32");
}

}  // namespace parts_cases
}  // namespace hawser::ops
