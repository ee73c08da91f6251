#include "ops/norm/rms_norm.h"

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace {

using namespace testing;

constexpr double kEpsilon = 1e-5;

struct Reference {
  Values y, rstd;
};

Reference forward(const Values& x, const Values& weight, std::int64_t tokens) {
  const auto channels = static_cast<std::int64_t>(weight.size());
  Reference out;
  for (std::int64_t t = 0; t < tokens; ++t) {
    double squares = 0;
    for (std::int64_t c = 0; c < channels; ++c) squares += x[t * channels + c] * x[t * channels + c];
    out.rstd.push_back(1 / std::sqrt(squares / static_cast<double>(channels) + kEpsilon));
    for (std::int64_t c = 0; c < channels; ++c) out.y.push_back(x[t * channels + c] * out.rstd.back() * weight[c]);
  }
  return out;
}

TEST(RmsNorm, ForwardAgreesWithFloat64) {
  for (const DType act : {DType::f32, DType::bf16}) {
    for (const DType weight_type : {DType::f32, act}) {
      for (const std::int64_t channels : {1, 20, 37, 576, 4096}) {
        const std::int64_t tokens = 9, pad = channels % 16 == 0 ? 8 : 1;  // aligned and unaligned rows
        const auto x = random_values(tokens * channels, 1, act), weight = random_values(channels, 2, weight_type);
        const Reference expected = forward(x, weight, tokens);
        check_case({cat("rms_norm_forward ", to_string(act), " ", channels),
                    [&](World& world) -> std::vector<Values> {
                      const RmsNormForward args{.x = world.in(act, {tokens, channels}, x, 3 * pad),
                                                .weight = world.in(weight_type, {channels}, weight),
                                                .y = world.out(act, {tokens, channels}, 5 * pad),
                                                .rstd = world.out(DType::f32, {tokens}),
                                                .epsilon = kEpsilon};
                      rms_norm_forward(world.stream(), args);
                      return {world.values(args.y), world.values(args.rstd)};
                    },
                    {expected.y, expected.rstd},
                    act == DType::bf16 ? kBf16Tolerance : 2e-6});
      }
    }
  }
}

struct BackwardCase {
  DType act = DType::f32, dweight = DType::f32;
  std::int64_t tokens, channels;
  bool residual = false, accumulate = false, want_dx = true, want_dweight = true;
};

void check_backward(const BackwardCase& b) {
  Values x = random_values(b.tokens * b.channels, 1, b.act), weight = random_values(b.channels, 2, b.act);
  const auto dy = random_values(b.tokens * b.channels, 3, b.act);
  const auto residual = random_values(b.tokens * b.channels, 4, b.act), old = random_values(b.channels, 5, b.dweight);
  const Values rstd = forward(x, weight, b.tokens).rstd;
  const auto loss = [&] { return dot(forward(x, weight, b.tokens).y, dy); };
  std::vector<Values> expected;
  if (b.want_dx) {
    const Values dx = numeric_gradient(loss, x);
    expected.push_back(b.residual ? plus(dx, residual) : dx);
  }
  if (b.want_dweight) {
    const Values dweight = numeric_gradient(loss, weight);
    expected.push_back(b.accumulate ? plus(dweight, old) : dweight);
  }
  const Shape shape{b.tokens, b.channels};
  const std::int64_t pad = b.channels % 16 == 0 ? 8 : 1;
  check_case({cat("rms_norm_backward ", to_string(b.act), " ", b.tokens, "x", b.channels, b.residual, b.accumulate),
              [&](World& world) -> std::vector<Values> {
                RmsNormBackward args{.x = world.in(b.act, shape, x, pad),
                                     .weight = world.in(b.act, {b.channels}, weight),
                                     .rstd = world.in(DType::f32, {b.tokens}, rstd),
                                     .dy = world.in(b.act, shape, dy, 2 * pad),
                                     .accumulate_weight = b.accumulate};
                if (b.residual) args.residual_gradient = world.in(b.act, shape, residual, 3 * pad);
                if (b.want_dx) args.dx = world.out(b.act, shape, 4 * pad);
                if (b.want_dweight) {
                  args.dweight =
                      b.accumulate ? world.in_out(b.dweight, {b.channels}, old) : world.out(b.dweight, {b.channels});
                  args.workspace = world.workspace(rms_norm_backward_workspace(b.tokens, b.channels));
                }
                rms_norm_backward(world.stream(), args);
                std::vector<Values> got;
                if (b.want_dx) got.push_back(world.values(args.dx));
                if (b.want_dweight) got.push_back(world.values(args.dweight));
                return got;
              },
              expected, b.act == DType::bf16 || b.dweight == DType::bf16 ? kBf16Tolerance : 5e-6});
}

TEST(RmsNorm, BackwardAgreesWithFiniteDifferences) {
  for (const DType act : {DType::f32, DType::bf16}) {
    check_backward({.act = act, .tokens = 7, .channels = 20, .residual = true, .accumulate = true});
    check_backward({.act = act, .tokens = 70, .channels = 19});
    check_backward({.act = act, .tokens = 5, .channels = 33, .residual = true, .want_dweight = false});
    check_backward({.act = act, .tokens = 5, .channels = 33, .accumulate = true, .want_dx = false});
    check_backward({.act = act, .dweight = act, .tokens = 3, .channels = 16});
    // Aligned rows for each GPU kernel: one vector per thread, two, and two in larger blocks.
    check_backward({.act = act, .tokens = 37, .channels = 64, .residual = true, .accumulate = true});
    check_backward({.act = act, .tokens = 2, .channels = 1088, .residual = true});
    check_backward({.act = act, .tokens = 1, .channels = 4112, .want_dweight = false});
  }
}

TEST(RmsNorm, WorksInPlace) {
  const std::int64_t tokens = 6, channels = 35;
  Values x = random_values(tokens * channels, 1), weight = random_values(channels, 2);
  const auto dy = random_values(tokens * channels, 3), residual = random_values(tokens * channels, 4);
  const Reference expected = forward(x, weight, tokens);
  for (const DeviceKind kind : devices()) {
    World world(kind, 2);
    const TensorView in_place = world.in_out(DType::f32, {tokens, channels}, x);
    const TensorView w = world.in(DType::f32, {channels}, weight), rstd = world.out(DType::f32, {tokens});
    rms_norm_forward(world.stream(), {.x = in_place, .weight = w, .y = in_place, .rstd = rstd, .epsilon = kEpsilon});
    expect_close(world.values(in_place), expected.y, 2e-6, "y over x");

    const auto loss = [&] { return dot(forward(x, weight, tokens).y, dy); };
    const Values dx = plus(numeric_gradient(loss, x), residual), dweight = numeric_gradient(loss, weight);
    for (const bool over_dy : {false, true}) {
      const TensorView dy_view = world.in(DType::f32, {tokens, channels}, dy);
      const TensorView residual_view = world.in(DType::f32, {tokens, channels}, residual);
      const TensorView dx_view = over_dy ? dy_view : residual_view, dw = world.out(DType::f32, {channels});
      rms_norm_backward(world.stream(), {.x = world.in(DType::f32, {tokens, channels}, x),
                                         .weight = w,
                                         .rstd = rstd,
                                         .dy = dy_view,
                                         .residual_gradient = residual_view,
                                         .dx = dx_view,
                                         .dweight = dw,
                                         .workspace = world.workspace(rms_norm_backward_workspace(tokens, channels))});
      expect_close(world.values(dx_view), dx, 5e-6, "dx in place");
      expect_close(world.values(dw), dweight, 5e-6, "dweight");
    }
  }
}

TEST(RmsNorm, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView x = world.in(DType::f32, {4, 8}, Values(32)), w = world.in(DType::f32, {8}, Values(8));
  const TensorView y = world.out(DType::f32, {4, 8}), rstd = world.out(DType::f32, {4});
  Stream& s = world.stream();
  expect_rejected([&] { rms_norm_forward(s, {.x = x, .weight = w, .y = y}); }, "rstd is missing");
  expect_rejected([&] { rms_norm_forward(s, {.x = x, .weight = w.rows(0, 7), .y = y, .rstd = rstd}); },
                  "weight has shape");
  expect_rejected(
      [&] {
        rms_norm_forward(s, {.x = x, .weight = w, .y = world.out(DType::bf16, {4, 8}), .rstd = rstd});
      },
      "y is bfloat16");
  expect_rejected(
      [&] { rms_norm_forward(s, {.x = x.rows(0, 3), .weight = w, .y = x.rows(1, 3), .rstd = rstd.rows(0, 3)}); },
      "share memory");
  RmsNormBackward good{.x = x, .weight = w, .rstd = rstd, .dy = y};
  expect_rejected([&] { rms_norm_backward(s, good); }, "dx and dweight are both missing");
  good.dweight = world.out(DType::f32, {8});
  expect_rejected([&] { rms_norm_backward(s, good); }, "workspace is missing");
  good.residual_gradient = x;
  expect_rejected([&] { rms_norm_backward(s, good); }, "residual_gradient without dx");
}

}  // namespace
}  // namespace hawser::ops
