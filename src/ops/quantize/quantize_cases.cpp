#include "ops/quantize/quantize.h"

#include <limits>

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace quantize_cases {

using namespace testing;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double code_of(double value, DType dtype) {
  return dispatch_fp8(dtype,
                      [&](auto tag) { return static_cast<double>(decltype(tag)(static_cast<float>(value)).bits); });
}

struct Matrix {
  std::int64_t rows, columns, pad = 0;
  DType in = DType::bf16, out = DType::f8e4m3;
  float scale = 0.0123f;
  bool rows_wanted = true, transposed_wanted = true, masked = true;
};

// Random values over many magnitudes, beyond the largest one, too; the casts are those of tensor/fp8.h, which
// fp8_test.cpp checks.
Case case_of(const Matrix& m) {
  const std::int64_t count = m.rows * m.columns;
  Values x = random_values(count, 7, m.in);
  for (std::int64_t i = 0; i < count; ++i) {
    double& value = x[static_cast<std::size_t>(i)];
    value = rounded(value * std::exp2(i % 24 - 16), m.in);
    if (i % 37 == 5) value = i % 2 == 0 ? kInfinity : -kInfinity;
    if (i % 41 == 3) value = 0;
  }
  Values mask(static_cast<std::size_t>(m.rows), 1);
  for (std::int64_t t = 0; m.masked && t < m.rows; t += 3) mask[static_cast<std::size_t>(t)] = 0;
  const float inverse = 1.0f / m.scale;
  const double largest = largest_fp8(m.out);
  Values q(x.size()), transposed(x.size());
  double amax = 0.25, saturated = 5;
  for (std::int64_t t = 0; t < m.rows; ++t) {
    for (std::int64_t c = 0; c < m.columns; ++c) {
      const auto i = static_cast<std::size_t>(t * m.columns + c);
      const double scaled = static_cast<float>(x[i]) * inverse;
      q[i] = transposed[static_cast<std::size_t>(c * m.rows + t)] = code_of(scaled, m.out);
      if (mask[static_cast<std::size_t>(t)] == 0) continue;
      amax = std::max(amax, std::abs(x[i]));
      saturated += std::abs(scaled) > largest ? 1 : 0;
    }
  }
  const auto run = [=](World& world) -> std::vector<Values> {
    Quantize args{.x = world.in(m.in, {m.rows, m.columns}, x, m.pad), .scale = world.in(DType::f32, {1}, {m.scale})};
    if (m.rows_wanted) args.q = world.out(m.out, {m.rows, m.columns});
    if (m.transposed_wanted) args.transposed = world.out(m.out, {m.columns, m.rows});
    if (m.masked) args.mask = world.in(DType::i32, {m.rows}, mask);
    args.used = world.out(DType::f32, {1});
    args.amax = world.in_out(DType::f32, {1}, {0.25});
    args.saturated = world.in_out(DType::f32, {1}, {5});
    quantize(world.stream(), args);
    return {m.rows_wanted ? world.values(args.q) : Values(),
            m.transposed_wanted ? world.values(args.transposed) : Values(), world.values(args.amax),
            world.values(args.saturated), world.values(args.used)};
  };
  return {cat("quantize ", m.rows, " x ", m.columns, " ", to_string(m.in), " to ", to_string(m.out), " pad ", m.pad),
          run,
          {m.rows_wanted ? q : Values(), m.transposed_wanted ? transposed : Values(), {amax}, {saturated}, {m.scale}},
          0};
}

TEST(Quantize, HasTheBitsOfTheCasts) {
  for (const DType in : {DType::f32, DType::bf16}) {
    for (const DType out : {DType::f8e4m3, DType::f8e5m2}) {
      check_case(case_of({.rows = 1, .columns = 1, .in = in, .out = out, .masked = false}));
      check_case(case_of({.rows = 37, .columns = 53, .pad = 3, .in = in, .out = out}));
      check_case(case_of({.rows = 144, .columns = 80, .pad = 8, .in = in, .out = out}));
      check_case(case_of({.rows = 257, .columns = 64, .in = in, .out = out, .transposed_wanted = false}));
      check_case(case_of({.rows = 128, .columns = 136, .in = in, .out = out, .rows_wanted = false}));
      check_case(case_of({.rows = 16, .columns = 16, .in = in, .out = out, .scale = 0x1p-126f, .masked = false}));
    }
  }
}

// All bfloat16, on every device: the bits of the casts, NaN too.
TEST(Quantize, AllBfloat16OnEveryDevice) {
  for (const DType out : {DType::f8e4m3, DType::f8e5m2}) {
    for (const DeviceKind kind : devices()) {
      World world(kind, 2);
      Values x, expected;
      for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
        const float value = std::bit_cast<float>(bits << 16);
        x.push_back(value);
        expected.push_back(code_of(value, out));
      }
      const Quantize args{.x = world.in(DType::bf16, {256, 256}, x),
                          .scale = world.in(DType::f32, {1}, {1}),
                          .q = world.out(out, {256, 256}),
                          .amax = world.in_out(DType::f32, {1}, {0})};
      quantize(world.stream(), args);
      expect_same_bits(world.values(args.q), expected, to_string(out));
      EXPECT_TRUE(std::isnan(world.values(args.amax)[0]));
    }
  }
}

TEST(Quantize, DequantizesEveryCode) {
  for (const DType in : {DType::f8e4m3, DType::f8e5m2}) {
    for (const DType out : {DType::f32, DType::bf16}) {
      Values codes, expected;
      for (int code = 0; code < 256; ++code) {
        const double value = dispatch_fp8(in, [&](auto tag) {
          tag.bits = static_cast<std::uint8_t>(code);
          return static_cast<double>(static_cast<float>(tag));
        });
        if (!std::isfinite(value)) continue;
        codes.push_back(code);
        expected.push_back(rounded(static_cast<float>(value) * 0.0123f, out));
      }
      const auto count = static_cast<std::int64_t>(codes.size());
      check_case({cat("dequantize ", to_string(in), " to ", to_string(out)),
                  [&](World& world) -> std::vector<Values> {
                    const Dequantize args{.q = world.in(in, {1, count}, codes),
                                          .scale = world.in(DType::f32, {1}, {0.0123f}),
                                          .y = world.out(out, {1, count})};
                    dequantize(world.stream(), args);
                    return {world.values(args.y)};
                  },
                  {expected},
                  0});
    }
  }
}

TEST(Quantize, DequantizesMatricesWithTheirScales) {
  constexpr std::int64_t kMatrices = 5, kRows = 37, kColumns = 53;
  const Values scales = {0.0123f, 1, 7, 0.5, 3e-6f};
  Values codes, expected;
  for (std::int64_t i = 0; i < kMatrices * kRows * kColumns; ++i) {
    F8E4M3 q;
    q.bits = static_cast<std::uint8_t>(i % 127);  // the last positive code is NaN
    codes.push_back(q.bits);
    expected.push_back(static_cast<float>(scales[static_cast<std::size_t>(i / (kRows * kColumns))]) *
                       static_cast<float>(q));
  }
  check_case({"dequantize matrices",
              [&](World& world) -> std::vector<Values> {
                const Dequantize args{.q = world.in(DType::f8e4m3, {kMatrices, kRows, kColumns}, codes),
                                      .scale = world.in(DType::f32, {kMatrices}, scales),
                                      .y = world.out(DType::f32, {kMatrices, kRows, kColumns})};
                dequantize(world.stream(), args);
                return {world.values(args.y)};
              },
              {expected},
              0});
}

TEST(Quantize, AmaxOfRowsAndVectors) {
  for (const DType in : {DType::f32, DType::bf16}) {
    Values x = random_values(31 * 40, 3, in), mask(31, 1);
    x[40 * 7 + 2] = -50;
    x[40 * 9 + 3] = 1000;
    mask[9] = 0;
    for (const bool accumulate : {false, true}) {
      for (const std::int64_t pad : {0, 8, 3}) {
        check_case({cat("amax pad ", pad),
                    [&](World& world) -> std::vector<Values> {
                      Amax args{.x = world.in(in, {31, 40}, x, pad), .mask = world.in(DType::i32, {31}, mask)};
                      args.accumulate = accumulate;
                      args.out = accumulate ? world.in_out(DType::f32, {1}, {60}) : world.out(DType::f32, {1});
                      amax(world.stream(), args);
                      return {world.values(args.out)};
                    },
                    {{accumulate ? 60.0 : 50.0}},
                    0});
      }
    }
    check_case({"amax of a vector",
                [&](World& world) -> std::vector<Values> {
                  const Amax args{.x = world.in(in, {31 * 40}, x), .out = world.out(DType::f32, {1})};
                  amax(world.stream(), args);
                  return {world.values(args.out)};
                },
                {{1000}},
                0});
  }
}

TEST(Quantize, ScalesOfAmaxes) {
  const Values amaxes = {448, 1, 0, kInfinity, 1e-38, 3};
  for (const bool keeps : {false, true}) {
    Values expected = {1, 1.0f / 448, 1, 1, 0x1p-126, 3.0f / 448};
    if (keeps) expected[2] = expected[3] = 9;
    if (!keeps) {
      for (double& scale : expected) scale = scale == 1 ? 1 : std::max(0x1p-126, scale);
    }
    check_case({cat("scales_of_amaxes ", keeps),
                [&](World& world) -> std::vector<Values> {
                  ScalesOfAmaxes args{.amax = world.in(DType::f32, {6}, amaxes)};
                  if (!keeps) args.otherwise = 1;
                  args.scales = keeps ? world.in_out(DType::f32, {6}, Values(6, 9)) : world.out(DType::f32, {6});
                  scales_of_amaxes(world.stream(), args);
                  return {world.values(args.scales)};
                },
                {expected},
                0});
  }
  check_case({"scales_of_amaxes with a margin",
              [&](World& world) -> std::vector<Values> {
                ScalesOfAmaxes args{.amax = world.in(DType::f32, {1}, {57344}), .scales = world.out(DType::f32, {1})};
                args.dtype = DType::f8e5m2;
                args.rule.margin = 2;
                args.otherwise = 1;
                scales_of_amaxes(world.stream(), args);
                return {world.values(args.scales)};
              },
              {{4}},
              0});
}

// Rows 0 and 2 are of x, rows 1 and 3 of dy.
TEST(Quantize, ASaturatedStepRefreshesScales) {
  for (const int skip : {3, 4}) {
    check_case({cat("delayed_scales after skip ", skip),
                [&](World& world) -> std::vector<Values> {
                  DelayedScales args{.amax = world.in(DType::f32, {1}, {448 * 3}),
                                     .history = world.in_out(DType::f32, {1, 2}, {448, 1}),
                                     .scales = world.in_out(DType::f32, {1}, {1}),
                                     .skip = world.in(DType::i32, {1}, {static_cast<double>(skip)})};
                  args.rule.power_of_two = true;
                  args.refreshes = 3;
                  delayed_scales(world.stream(), args);
                  return {world.values(args.history), world.values(args.scales)};
                },
                {skip == 3 ? Values{448 * 3, 448} : Values{448, 1}, {skip == 3 ? 4.0 : 1.0}},
                0});
  }
}

TEST(Quantize, DelayedScalesByHand) {
  const Values amaxes = {448, 57344, kInfinity, 0}, history = {896, 2, 3, 1, 1, 7, 5, 6, 7, 8, 9, 10};
  for (const bool skipped : {false, true}) {
    for (const bool most_recent : {false, true}) {
      Values expected = history, scales = {0.5, 0.5, 0.5, 0.5};
      if (!skipped) {
        expected = {448, 896, 2, 57344, 1, 1, 5, 6, 7, 8, 9, 10};
        scales = {most_recent ? 1.0 : 2.0, 1, 0.5, 0.5};
      }
      check_case({cat("delayed_scales ", skipped, most_recent),
                  [&](World& world) -> std::vector<Values> {
                    DelayedScales args{.amax = world.in(DType::f32, {4}, amaxes),
                                       .history = world.in_out(DType::f32, {4, 3}, history),
                                       .scales = world.in_out(DType::f32, {4}, Values(4, 0.5)),
                                       .skip = world.in(DType::i32, {1}, {skipped ? 1.0 : 0.0})};
                    args.most_recent = most_recent;
                    delayed_scales(world.stream(), args);
                    return {world.values(args.history), world.values(args.scales)};
                  },
                  {expected, scales},
                  0});
    }
  }
}

TEST(Quantize, RejectsWhatItCannotWrite) {
  World world(DeviceKind::cpu, 1);
  const TensorView x = world.in(DType::f32, {4, 6}, Values(24)), scale = world.in(DType::f32, {1}, {1});
  const TensorView q = world.out(DType::f8e4m3, {4, 6}), other = world.out(DType::f8e5m2, {6, 4});
  expect_rejected([&] { quantize(world.stream(), {.x = x, .scale = scale}); }, "nothing to write");
  expect_rejected([&] { quantize(world.stream(), {.x = x, .scale = scale, .q = other}); }, "q has shape");
  expect_rejected([&] { quantize(world.stream(), {.x = x, .scale = scale, .q = q, .transposed = other}); },
                  "two dtypes");
  expect_rejected([&] { quantize(world.stream(), {.x = x, .scale = scale, .q = x}); }, "q is float32");
}

}  // namespace quantize_cases
}  // namespace hawser::ops
