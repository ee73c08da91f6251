#include "ops/dora/dora.h"

#include <array>
#include <cmath>

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace dora_cases {

using namespace testing;

constexpr auto kActs = {DType::f32, DType::bf16};

// P and Q of the contract, as float32 GEMMs would give them.
Values low_rank_products(const Values& a, const Values& b, std::int64_t rows_a, std::int64_t rows_b, std::int64_t n) {
  Values out;
  for (std::int64_t i = 0; i < rows_a; ++i) {
    for (std::int64_t j = 0; j < rows_b; ++j) {
      double sum = 0;
      for (std::int64_t c = 0; c < n; ++c) {
        sum += a[static_cast<std::size_t>(i * n + c)] * b[static_cast<std::size_t>(j * n + c)];
      }
      out.push_back(rounded(sum, DType::f32));
    }
  }
  return out;
}

TEST(Dora, RowSquaresEqualThoseOfTheSum) {
  for (const DType dtype : kActs) {
    for (const auto& [rows, columns, rank] : {std::array<std::int64_t, 3>{5, 37, 3}, {19, 512, 16}, {3, 264, 270}}) {
      const double scale = 0.75;
      const Values w = random_values(rows * columns, 1, dtype), a = random_values(rank * columns, 2, dtype),
                   b = random_values(rows * rank, 3, dtype, 0.3);
      Values expected;
      for (std::int64_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (std::int64_t c = 0; c < columns; ++c) {
          double value = w[static_cast<std::size_t>(r * columns + c)];
          for (std::int64_t k = 0; k < rank; ++k) {
            value += scale * b[static_cast<std::size_t>(r * rank + k)] * a[static_cast<std::size_t>(k * columns + c)];
          }
          sum += value * value;
        }
        expected.push_back(sum);
      }
      const Values p = low_rank_products(w, a, rows, rank, columns), q = low_rank_products(a, a, rank, rank, columns);
      check_case({cat("dora_row_squares ", to_string(dtype), " ", rows, " x ", columns, " rank ", rank),
                  [&, rows = rows, columns = columns, rank = rank](World& world) -> std::vector<Values> {
                    const DoraRowSquares args{.w = world.in(dtype, {rows, columns}, w),
                                              .b = world.in(dtype, {rows, rank}, b),
                                              .p = world.in(DType::f32, {rows, rank}, p),
                                              .q = world.in(DType::f32, {rank, rank}, q),
                                              .n = world.out(DType::f32, {rows}),
                                              .scale = scale};
                    dora_row_squares(world.stream(), args);
                    return {world.values(args.n)};
                  },
                  {expected},
                  4e-6});
    }
  }
}

TEST(Dora, ScalesColumnsByMagnitudesOverNorms) {
  for (const DType act : kActs) {
    for (const DType magnitudes : kActs) {
      for (const std::int64_t columns : {21, 48}) {
        for (const bool accumulate : {false, true}) {
          const std::int64_t rows = 7, pad = columns == 48 ? 8 : 3;
          const Values x = random_values(rows * columns, 1, act), before = random_values(rows * columns, 2, act),
                       m = random_values(columns, 3, magnitudes);
          Values n = random_values(columns, 4);
          for (double& value : n) value = rounded(value * value, DType::f32);
          n[2] = 0;  // a row of zeros
          Values expected = before;
          for (std::size_t i = 0; i < expected.size(); ++i) {
            const std::size_t r = i % static_cast<std::size_t>(columns);
            const double factor = n[r] > 0 ? m[r] / std::sqrt(n[r]) : 0;
            expected[i] = (accumulate ? before[i] : 0) + (factor - (accumulate ? 1 : 0)) * x[i];
          }
          check_case({cat("scale_by_norms ", to_string(act), " ", to_string(magnitudes), " ", columns, " ", accumulate),
                      [&](World& world) -> std::vector<Values> {
                        const TensorView y = accumulate ? world.in_out(act, {rows, columns}, before, pad)
                                                        : world.out(act, {rows, columns}, pad);
                        scale_by_norms(world.stream(), {.x = world.in(act, {rows, columns}, x, 2 * pad),
                                                        .m = world.in(magnitudes, {columns}, m),
                                                        .n = world.in(DType::f32, {columns}, n),
                                                        .y = y,
                                                        .minus = accumulate ? 1.0 : 0.0,
                                                        .accumulate = accumulate});
                        return {world.values(y)};
                      },
                      {expected},
                      act == DType::bf16 ? kBf16Tolerance : 1e-6});
        }
      }
    }
  }
  World world(DeviceKind::cpu, 1);
  const TensorView y = world.in_out(DType::f32, {2, 3}, Values(6, 1.0)), n = world.in(DType::f32, {3}, Values(3, 4.0));
  scale_by_norms(world.stream(), {.x = y, .m = world.in(DType::f32, {3}, {1, 2, 3}), .n = n, .y = y});
  EXPECT_EQ(world.values(y), (Values{0.5, 1, 1.5, 0.5, 1, 1.5}));  // in place
  expect_rejected([&] { scale_by_norms(world.stream(), {.x = y, .m = n.rows(0, 2), .n = n, .y = y}); }, "m has shape");
}

TEST(Dora, MagnitudeGradientsAreColumnSums) {
  for (const DType act : kActs) {
    for (const std::int64_t columns : {21, 48}) {
      for (const std::int64_t rows : {1, 300}) {
        const std::int64_t pad = columns == 48 ? 8 : 3;
        const Values dy = random_values(rows * columns, 1, act), u = random_values(rows * columns, 2, act),
                     before = random_values(columns, 3);
        Values n = random_values(columns, 4);
        for (double& value : n) value = rounded(value * value + 0.1, DType::f32);
        Values expected = before;
        for (std::size_t i = 0; i < dy.size(); ++i) {
          const std::size_t r = i % static_cast<std::size_t>(columns);
          expected[r] += dy[i] * u[i] / std::sqrt(n[r]);
        }
        check_case({cat("dora_magnitude_gradient ", to_string(act), " ", rows, " x ", columns),
                    [&](World& world) -> std::vector<Values> {
                      const TensorView dm = world.in_out(DType::f32, {columns}, before);
                      dora_magnitude_gradient(world.stream(), {.dy = world.in(act, {rows, columns}, dy, pad),
                                                               .u = world.in(act, {rows, columns}, u),
                                                               .n = world.in(DType::f32, {columns}, n),
                                                               .dm = dm,
                                                               .accumulate = true});
                      return {world.values(dm)};
                    },
                    {expected},
                    3e-6});
      }
    }
  }
}

}  // namespace dora_cases
}  // namespace hawser::ops
