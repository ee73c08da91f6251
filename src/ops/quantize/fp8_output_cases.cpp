#include "ops/quantize/fp8_output.h"

#include "ops/activation/gated.h"
#include "ops/norm/rms_norm.h"
#include "ops/quantize/quantize.h"
#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace fp8_output_cases {

using namespace testing;

// An Fp8Output with everything that there is, whose scale saturates some values.
struct Output {
  Fp8Output to;
  std::int64_t rows, columns;

  Output(World& world, DType dtype, std::int64_t t, std::int64_t c, float scale, bool rows_wanted = true,
         bool transposed_wanted = true)
      : rows(t), columns(c) {
    Values mask(static_cast<std::size_t>(t), 1);
    for (std::int64_t i = 0; i < t; i += 3) mask[static_cast<std::size_t>(i)] = 0;
    to = {.scale = world.in(DType::f32, {1}, {scale}),
          .q = rows_wanted ? world.out(dtype, {t, c}) : TensorView(),
          .transposed = transposed_wanted ? world.out(dtype, {c, t}) : TensorView(),
          .used = world.out(DType::f32, {1}),
          .mask = world.in(DType::i32, {t}, mask),
          .amax = world.in_out(DType::f32, {1}, {0.001}),
          .saturated = world.in_out(DType::f32, {1}, {2})};
  }
  // The same of a y that an op has written.
  void quantize(World& world, const TensorView& y) const {
    ops::quantize(world.stream(), {.x = y,
                                   .scale = to.scale,
                                   .q = to.q,
                                   .transposed = to.transposed,
                                   .used = to.used,
                                   .mask = to.mask,
                                   .amax = to.amax,
                                   .saturated = to.saturated});
  }
};

void expect_equal(World& world, const Output& got, const Output& expected, const std::string& what) {
  const auto pairs = {std::pair{&Fp8Output::q, "q"},
                      {&Fp8Output::transposed, "transposed"},
                      {&Fp8Output::used, "used"},
                      {&Fp8Output::amax, "amax"},
                      {&Fp8Output::saturated, "saturated"}};
  for (const auto& [member, name] : pairs) {
    if ((got.to.*member).empty()) continue;
    expect_same_bits(world.values(got.to.*member), world.values(expected.to.*member), cat(what, ": ", name));
  }
  const Values saturated = world.values(expected.to.saturated);
  EXPECT_TRUE(saturated.empty() || got.rows < 16 || saturated[0] > 2) << what << ": nothing is saturated";
}

struct Size {
  std::int64_t rows, columns, pad = 0;
};
constexpr Size kSizes[] = {{1, 1}, {37, 53, 3}, {144, 80, 8}, {257, 64}, {130, 136}};
// Rows that several blocks of a GPU share, with parts that are empty or cut; those of the last are too long for it.
constexpr Size kNormSizes[] = {{1, 1},     {37, 53, 3},   {144, 80, 8}, {257, 64},  {130, 136}, {48, 1024},
                               {32, 4096}, {16, 5120, 8}, {32, 2880},   {16, 8192}, {33, 2048}, {32, 8200}};

TEST(Fp8Output, OfAnRmsNormIsTheQuantizedNorm) {
  for (const DeviceKind device : devices()) {
    for (const DType act : {DType::f32, DType::bf16}) {
      for (const bool unit_offset : {false, true}) {
        for (const Size& size : kNormSizes) {
          World world(device, 2);
          const auto [rows, columns, pad] = size;
          const DType weights = columns % 2048 == 0 ? DType::f32 : act;
          RmsNormForward args{.x = world.in(act, {rows, columns}, random_values(rows * columns, 1, act), pad),
                              .weight = world.in(weights, {columns}, random_values(columns, 2, weights)),
                              .y = world.out(act, {rows, columns}),
                              .rstd = world.out(DType::f32, {rows}),
                              .unit_offset = unit_offset};
          const Output expected(world, DType::f8e4m3, rows, columns, 0.003f);
          rms_norm_forward(world.stream(), args);
          expected.quantize(world, args.y);
          const Values rstd = world.values(args.rstd);
          const Output both(world, DType::f8e4m3, rows, columns, 0.003f),
              transposed(world, DType::f8e4m3, rows, columns, 0.003f, false),
              alone(world, DType::f8e4m3, rows, columns, 0.003f, true, false);
          args.y = {};
          for (const Output* to : {&both, &transposed, &alone}) {
            const std::string what = cat("rms_norm ", to_string(act), " ", rows, " x ", columns);
            args.rstd = world.out(DType::f32, {rows});
            args.fp8 = to->to;
            rms_norm_forward(world.stream(), args);
            expect_equal(world, *to, expected, what);
            expect_same_bits(world.values(args.rstd), rstd, cat(what, ": rstd"));
          }
          world.check_gaps();
        }
      }
    }
  }
}

TEST(Fp8Output, OfAGatedActivationIsTheQuantizedActivation) {
  for (const DeviceKind device : devices()) {
    for (const DType act : {DType::f32, DType::bf16}) {
      for (const Gate kind : {Gate::silu, Gate::gelu, Gate::gelu_tanh}) {
        for (const Size& size : kSizes) {
          World world(device, 2);
          const auto [rows, hidden, pad] = size;
          const std::string what = cat("gated ", to_string(act), static_cast<int>(kind), " ", rows, " x ", hidden);
          const TensorView gate_up =
              world.in(act, {rows, 2 * hidden}, random_values(2 * rows * hidden, 1, act, 3.0), 2 * pad);
          const TensorView dy = world.in(act, {rows, hidden}, random_values(rows * hidden, 2, act), pad);
          const TensorView y = world.out(act, {rows, hidden}), y_again = world.out(act, {rows, hidden}),
                           dgate_up = world.out(act, {rows, 2 * hidden});
          const auto output = [&](DType dtype, std::int64_t columns, float scale, bool rows_wanted = true) {
            return Output(world, dtype, rows, columns, scale, rows_wanted);
          };
          const Output expected_y = output(DType::f8e4m3, hidden, 0.01f), got_y = output(DType::f8e4m3, hidden, 0.01f),
                       expected_again = output(DType::f8e4m3, hidden, 0.01f, false),
                       got_again = output(DType::f8e4m3, hidden, 0.01f, false),
                       expected_d = output(DType::f8e5m2, 2 * hidden, 3e-5f),
                       got_d = output(DType::f8e5m2, 2 * hidden, 3e-5f),
                       alone_d = output(DType::f8e5m2, 2 * hidden, 3e-5f);
          gated_forward(world.stream(), {.gate_up = gate_up, .y = y, .kind = kind});
          gated_backward(world.stream(),
                         {.gate_up = gate_up, .dy = dy, .dgate_up = dgate_up, .y = y_again, .kind = kind});
          expected_y.quantize(world, y);
          expected_again.quantize(world, y_again);
          expected_d.quantize(world, dgate_up);
          gated_forward(world.stream(), {.gate_up = gate_up, .kind = kind, .fp8 = got_y.to});
          gated_backward(world.stream(),
                         {.gate_up = gate_up, .dy = dy, .kind = kind, .dgate_up_fp8 = got_d.to, .y_fp8 = got_again.to});
          gated_backward(world.stream(), {.gate_up = gate_up, .dy = dy, .kind = kind, .dgate_up_fp8 = alone_d.to});
          expect_equal(world, got_y, expected_y, what);
          expect_equal(world, got_again, expected_again, cat(what, ", again"));
          expect_equal(world, got_d, expected_d, cat(what, ", gradient"));
          expect_equal(world, alone_d, expected_d, cat(what, ", gradient alone"));
        }
      }
    }
  }
}

// Rows from row_count on are NaN, and have no part in an amax, in what is counted and in the rows before them.
TEST(Fp8Output, OfRowsThatOnlyTheDeviceCounts) {
  constexpr std::int64_t kRows = 384, kColumns = 80, kTwice = 2 * kColumns;
  for (const DeviceKind device : devices()) {
    for (const std::int64_t count : {std::int64_t{0}, std::int64_t{128}, std::int64_t{256}, kRows}) {
      World world(device, 2);
      const auto rows_of = [&](std::int64_t columns, std::uint64_t seed) {
        Values values = random_values(kRows * columns, seed, DType::bf16);
        for (auto i = static_cast<std::size_t>(count * columns); i < values.size(); ++i) values[i] = NAN;
        return world.in(DType::bf16, {kRows, columns}, values);
      };
      const TensorView gate_up = rows_of(kTwice, 1), dy = rows_of(kColumns, 2),
                       limit = world.in(DType::i32, {1}, {static_cast<double>(count)});
      const auto scale_of = [](DType dtype) { return dtype == DType::f8e4m3 ? 0.003f : 3e-5f; };
      const auto output = [&](DType dtype, std::int64_t columns, std::int64_t rows) {
        Output out(world, dtype, rows, columns, scale_of(dtype));
        out.to.mask = {};
        if (rows == kRows) out.to.row_count = limit;
        return out;
      };
      const auto check = [&](const std::string& what, DType dtype, std::int64_t columns,
                             const std::function<void(const Output&, std::int64_t)>& run) {
        const Output got = output(dtype, columns, kRows);
        run(got, kRows);
        if (count == 0) {
          EXPECT_EQ(world.values(got.to.amax)[0], static_cast<double>(0.001f)) << what;
          EXPECT_EQ(world.values(got.to.saturated)[0], 2) << what;
          EXPECT_EQ(world.values(got.to.used)[0], static_cast<double>(scale_of(dtype))) << what;
          return;
        }
        const Output expected = output(dtype, columns, count);
        run(expected, count);
        Output part = got;
        part.to.q = got.to.q.rows(0, count);
        part.to.transposed = got.to.transposed.columns(0, count);
        expect_equal(world, part, expected, cat(what, " of ", count, " rows"));
      };
      check("quantize", DType::f8e4m3, kColumns, [&](const Output& to, std::int64_t rows) {
        quantize(world.stream(), {.x = dy.rows(0, rows),
                                  .scale = to.to.scale,
                                  .q = to.to.q,
                                  .transposed = to.to.transposed,
                                  .used = to.to.used,
                                  .amax = to.to.amax,
                                  .saturated = to.to.saturated,
                                  .row_count = to.to.row_count});
      });
      check("gated", DType::f8e4m3, kColumns, [&](const Output& to, std::int64_t rows) {
        gated_forward(world.stream(), {.gate_up = gate_up.rows(0, rows), .fp8 = to.to});
      });
      const Output again = output(DType::f8e4m3, kColumns, kRows), alone = output(DType::f8e4m3, kColumns, count);
      check("gated backward", DType::f8e5m2, kTwice, [&](const Output& to, std::int64_t rows) {
        gated_backward(world.stream(), {.gate_up = gate_up.rows(0, rows),
                                        .dy = dy.rows(0, rows),
                                        .dgate_up_fp8 = to.to,
                                        .y_fp8 = rows == kRows ? again.to : alone.to});
      });
      const TensorView largest = world.out(DType::f32, {1}), of_rows = world.out(DType::f32, {1});
      amax(world.stream(), {.x = dy, .out = largest, .row_count = limit});
      amax(world.stream(), {.x = dy.rows(0, count), .out = of_rows});
      expect_same_bits(world.values(largest), world.values(of_rows), "amax");
    }
  }
}

TEST(Fp8Output, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView x = world.in(DType::f32, {4, 8}, Values(32)), w = world.in(DType::f32, {8}, Values(8)),
                   y = world.out(DType::f32, {4, 8}), rstd = world.out(DType::f32, {4});
  Stream& s = world.stream();
  const Output to(world, DType::f8e4m3, 4, 8, 1), wide(world, DType::f8e4m3, 4, 16, 1),
      gradient(world, DType::f8e5m2, 4, 8, 1), wide_gradient(world, DType::f8e5m2, 4, 16, 1);
  expect_rejected([&] { rms_norm_forward(s, {.x = x, .weight = w, .y = y, .rstd = rstd, .fp8 = to.to}); },
                  "in place of y");
  expect_rejected([&] { rms_norm_forward(s, {.x = x, .weight = w, .rstd = rstd, .fp8 = wide.to}); }, "q has shape");
  Fp8Output two = to.to;
  two.transposed = world.out(DType::f8e5m2, {8, 4});
  expect_rejected([&] { rms_norm_forward(s, {.x = x, .weight = w, .rstd = rstd, .fp8 = two}); },
                  "transposed is float8_e5m2");
  expect_rejected([&] { quantize(s, {.x = x, .scale = two.scale, .q = two.q, .transposed = two.transposed}); },
                  "two dtypes");
  const TensorView gate_up = world.in(DType::f32, {4, 16}, Values(64));
  expect_rejected([&] { gated_forward(s, {.gate_up = gate_up, .y = y, .fp8 = to.to}); }, "FP8 in its place");
  expect_rejected(
      [&] {
        gated_backward(s, {.gate_up = gate_up, .dy = x, .dgate_up = world.out(DType::f32, {4, 16}), .y_fp8 = to.to});
      },
      "without dgate_up in FP8");
  expect_rejected([&] { gated_backward(s, {.gate_up = gate_up, .dy = x, .y = y, .dgate_up_fp8 = wide_gradient.to}); },
                  "FP8 in its place");
  expect_rejected([&] { gated_backward(s, {.gate_up = gate_up, .dy = x, .dgate_up_fp8 = gradient.to}); },
                  "q has shape");
  for (const Fp8Output& other : {gradient.to, wide_gradient.to}) {
    expect_rejected([&] { rms_norm_forward(s, {.x = x, .weight = w, .rstd = rstd, .fp8 = other}); },
                    "q is float8_e5m2");
    expect_rejected([&] { gated_forward(s, {.gate_up = gate_up, .fp8 = other}); }, "q is float8_e5m2");
    expect_rejected(
        [&] { gated_backward(s, {.gate_up = gate_up, .dy = x, .dgate_up_fp8 = wide_gradient.to, .y_fp8 = other}); },
        "q is float8_e5m2");
  }
  expect_rejected([&] { gated_backward(s, {.gate_up = gate_up, .dy = x, .dgate_up_fp8 = wide.to}); },
                  "q is float8_e4m3fn");
}

}  // namespace fp8_output_cases
}  // namespace hawser::ops
