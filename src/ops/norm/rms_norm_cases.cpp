#include "ops/norm/rms_norm.h"

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace rms_norm_cases {

using namespace testing;

constexpr double kEpsilon = 1e-5;

struct Reference {
  Values y, rstd;
};

Reference forward(const Values& x, const Values& weight, std::int64_t tokens, bool unit_offset = false) {
  const auto channels = static_cast<std::int64_t>(weight.size());
  Reference out;
  for (std::int64_t t = 0; t < tokens; ++t) {
    double squares = 0;
    for (std::int64_t c = 0; c < channels; ++c) squares += x[t * channels + c] * x[t * channels + c];
    out.rstd.push_back(1 / std::sqrt(squares / static_cast<double>(channels) + kEpsilon));
    for (std::int64_t c = 0; c < channels; ++c) {
      out.y.push_back(x[t * channels + c] * out.rstd.back() * (unit_offset ? 1 + weight[c] : weight[c]));
    }
  }
  return out;
}

struct NormCase {
  DType act = DType::f32, weight = DType::f32, dweight = DType::f32;
  std::int64_t tokens = 1, channels = 1;
  std::int64_t heads = 0;  // 0: rows of a matrix
  bool unit_offset = false, residual = false, accumulate = false, want_dx = true, want_dweight = true;

  std::int64_t rows() const { return tokens * std::max<std::int64_t>(heads, 1); }
  Shape shape() const { return heads > 0 ? Shape{tokens, heads, channels} : Shape{tokens, channels}; }
  Shape row_shape() const { return heads > 0 ? Shape{tokens, heads} : Shape{tokens}; }
  std::int64_t pad() const { return channels % 16 == 0 ? 8 : 1; }  // aligned and unaligned rows
  std::string text(const char* op) const {
    return cat(op, " ", to_string(act), " ", tokens, "x", heads, "x", channels, unit_offset, residual, accumulate);
  }
};

void check_forward(const NormCase& n) {
  const auto x = random_values(n.rows() * n.channels, 1, n.act), weight = random_values(n.channels, 2, n.weight);
  const Reference expected = forward(x, weight, n.rows(), n.unit_offset);
  check_case({n.text("rms_norm_forward"),
              [&](World& world) -> std::vector<Values> {
                const RmsNormForward args{.x = world.in(n.act, n.shape(), x, 3 * n.pad()),
                                          .weight = world.in(n.weight, {n.channels}, weight),
                                          .y = world.out(n.act, n.shape(), 5 * n.pad()),
                                          .rstd = world.out(DType::f32, n.row_shape()),
                                          .epsilon = kEpsilon,
                                          .unit_offset = n.unit_offset};
                rms_norm_forward(world.stream(), args);
                return {world.values(args.y), world.values(args.rstd)};
              },
              {expected.y, expected.rstd},
              n.act == DType::bf16 ? kBf16Tolerance : 2e-6});
}

TEST(RmsNorm, ForwardAgreesWithFloat64) {
  for (const DType act : {DType::f32, DType::bf16}) {
    for (const DType weight : {DType::f32, act}) {
      for (const std::int64_t channels : {1, 20, 37, 576, 4096}) {
        check_forward({.act = act, .weight = weight, .tokens = 9, .channels = channels});
      }
      for (const std::int64_t channels : {37, 576}) {
        check_forward({.act = act, .weight = weight, .tokens = 5, .channels = channels, .unit_offset = true});
      }
    }
  }
}

// GPU kernels for heads: one, several or two vectors per lane, and one element per load.
TEST(RmsNorm, ForwardOfHeadsInsideRows) {
  for (const DType act : {DType::f32, DType::bf16}) {
    for (const std::int64_t channels : {8, 16, 20, 33, 80, 128, 256, 1024}) {
      check_forward({.act = act, .tokens = 11, .channels = channels, .heads = 3, .unit_offset = channels != 128});
    }
    check_forward({.act = act, .weight = act, .tokens = 70, .channels = 128, .heads = 1});
  }
}

void check_backward(const NormCase& b) {
  Values x = random_values(b.rows() * b.channels, 1, b.act), weight = random_values(b.channels, 2, b.act);
  const auto dy = random_values(b.rows() * b.channels, 3, b.act);
  const auto residual = random_values(b.rows() * b.channels, 4, b.act), old = random_values(b.channels, 5, b.dweight);
  const Values rstd = forward(x, weight, b.rows()).rstd;
  const auto loss = [&] { return dot(forward(x, weight, b.rows(), b.unit_offset).y, dy); };
  std::vector<Values> expected;
  if (b.want_dx) {
    const Values dx = numeric_gradient(loss, x);
    expected.push_back(b.residual ? plus(dx, residual) : dx);
  }
  if (b.want_dweight) {
    const Values dweight = numeric_gradient(loss, weight);
    expected.push_back(b.accumulate ? plus(dweight, old) : dweight);
  }
  const Shape shape = b.shape();
  const std::int64_t pad = b.pad();
  check_case({b.text("rms_norm_backward"),
              [&](World& world) -> std::vector<Values> {
                RmsNormBackward args{.x = world.in(b.act, shape, x, pad),
                                     .weight = world.in(b.act, {b.channels}, weight),
                                     .rstd = world.in(DType::f32, b.row_shape(), rstd),
                                     .dy = world.in(b.act, shape, dy, 2 * pad),
                                     .accumulate_weight = b.accumulate,
                                     .unit_offset = b.unit_offset};
                if (b.residual) args.residual_gradient = world.in(b.act, shape, residual, 3 * pad);
                if (b.want_dx) args.dx = world.out(b.act, shape, 4 * pad);
                if (b.want_dweight) {
                  args.dweight =
                      b.accumulate ? world.in_out(b.dweight, {b.channels}, old) : world.out(b.dweight, {b.channels});
                  args.workspace = world.workspace(rms_norm_backward_workspace(b.rows(), b.channels));
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
    check_backward({.act = act, .tokens = 5, .channels = 33, .unit_offset = true, .residual = true});
    check_backward({.act = act, .tokens = 9, .channels = 64, .unit_offset = true, .accumulate = true});
  }
}

TEST(RmsNorm, BackwardOfHeadsInsideRows) {
  for (const DType act : {DType::f32, DType::bf16}) {
    check_backward({.act = act, .tokens = 7, .channels = 16, .heads = 3, .unit_offset = true, .accumulate = true});
    check_backward({.act = act, .tokens = 4, .channels = 21, .heads = 5, .residual = true});
    check_backward({.act = act, .dweight = act, .tokens = 20, .channels = 80, .heads = 2, .residual = true});
    check_backward({.act = act, .tokens = 3, .channels = 256, .heads = 2, .want_dweight = false});
    check_backward({.act = act, .tokens = 5, .channels = 40, .heads = 2, .unit_offset = true, .want_dx = false});
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
  const TensorView heads = world.in(DType::f32, {4, 2, 8}, Values(64)), y_heads = world.out(DType::f32, {4, 2, 8});
  expect_rejected([&] { rms_norm_forward(s, {.x = heads, .weight = w, .y = y_heads, .rstd = rstd}); },
                  "rstd has shape");
  expect_rejected(
      [&] {
        rms_norm_forward(s, {.x = heads.reshape({2, 2, 2, 8}), .weight = w, .y = y_heads, .rstd = rstd});
      },
      "x must be a matrix, or heads");
  expect_rejected(
      [&] {
        rms_norm_forward(s, {.x = world.in(DType::f32, {1, 2, 1032}, Values(2064)), .weight = w, .y = y, .rstd = rstd});
      },
      "head dim is above");
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

}  // namespace rms_norm_cases
}  // namespace hawser::ops
