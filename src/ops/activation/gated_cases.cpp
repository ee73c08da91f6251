#include "ops/activation/gated.h"

#include <numbers>

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace gated_cases {

using namespace testing;

double act(Gate kind, double x) {
  if (kind == Gate::silu) return x / (1 + std::exp(-x));
  if (kind == Gate::gelu) return x / 2 * std::erfc(-x / std::sqrt(2.0));
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

Values forward(Gate kind, const Values& gate_up, std::int64_t hidden) {
  Values out;
  for (std::size_t row = 0; row < gate_up.size(); row += static_cast<std::size_t>(2 * hidden)) {
    for (std::int64_t f = 0; f < hidden; ++f) out.push_back(act(kind, gate_up[row + f]) * gate_up[row + hidden + f]);
  }
  return out;
}

void check(Gate kind, DType act, std::int64_t hidden) {
  const std::int64_t tokens = 5, pad = hidden % 16 == 0 ? 8 : 1;  // aligned and unaligned rows
  const Shape wide{tokens, 2 * hidden}, narrow{tokens, hidden};
  Values gate_up = random_values(2 * tokens * hidden, 1, act, 3.0);
  gate_up[0] = rounded(-100.0, act);  // saturates the gate on both sides
  gate_up.back() = rounded(90.0, act);
  if (hidden > 1) gate_up[1] = rounded(100.0, act);
  const Values dy = random_values(tokens * hidden, 2, act);
  const Values y = forward(kind, gate_up, hidden);
  const Values given = gate_up;
  const double tolerance = act == DType::bf16 ? kBf16Tolerance : 2e-6;
  const std::string name = cat(" ", static_cast<int>(kind), " ", to_string(act), hidden);
  check_case({"gated_forward" + name,
              [&](World& world) -> std::vector<Values> {
                const GatedForward args{
                    .gate_up = world.in(act, wide, given, 3 * pad), .y = world.out(act, narrow, 2 * pad), .kind = kind};
                gated_forward(world.stream(), args);
                return {world.values(args.y)};
              },
              {y},
              tolerance});
  const Values dgate_up = numeric_gradient([&] { return dot(forward(kind, gate_up, hidden), dy); }, gate_up);
  check_case({"gated_backward" + name,
              [&](World& world) -> std::vector<Values> {
                const GatedBackward args{.gate_up = world.in(act, wide, given, 3 * pad),
                                         .dy = world.in(act, narrow, dy, pad),
                                         .dgate_up = world.out(act, wide, 5 * pad),
                                         .y = world.out(act, narrow, 4 * pad),
                                         .kind = kind};
                gated_backward(world.stream(), args);
                return {world.values(args.dgate_up), world.values(args.y)};
              },
              {dgate_up, y},
              tolerance});
  for (const DeviceKind device : devices()) {
    World world(device, 2);
    const TensorView both = world.in_out(act, wide, given), dy_view = world.in_out(act, narrow, dy);
    gated_backward(world.stream(), {.gate_up = both, .dy = dy_view, .dgate_up = both, .y = dy_view, .kind = kind});
    expect_close(world.values(both), dgate_up, tolerance, "in place");
    expect_close(world.values(dy_view), y, tolerance, "y over dy");
  }
}

TEST(Gated, AgreesWithFloat64AndFiniteDifferences) {
  for (const Gate kind : {Gate::silu, Gate::gelu, Gate::gelu_tanh}) {
    for (const DType act : {DType::f32, DType::bf16}) {
      for (const std::int64_t hidden : {1, 20, 48}) {
        if (hidden > 1 || kind == Gate::silu) check(kind, act, hidden);
      }
    }
  }
}

// The vectors' GELU is a polynomial: every part of its range, and the tails.
TEST(Gated, GeluAgreesInItsRange) {
  for (const Gate kind : {Gate::gelu, Gate::gelu_tanh}) {
    Values gate_up, y;
    for (int i = -1600; i < 1600; ++i) {
      gate_up.push_back(rounded(i / 100.0, DType::f32));
      y.push_back(act(kind, gate_up.back()));
    }
    const auto count = static_cast<std::int64_t>(y.size());
    gate_up.resize(2 * y.size(), 1.0);
    check_case({cat("gelu of a gate ", static_cast<int>(kind)),
                [&](World& world) -> std::vector<Values> {
                  const GatedForward args{.gate_up = world.in(DType::f32, {1, 2 * count}, gate_up),
                                          .y = world.out(DType::f32, {1, count}),
                                          .kind = kind};
                  gated_forward(world.stream(), args);
                  const Values got = world.values(args.y);
                  for (std::size_t i = 0; i < got.size() && world.stream().kind() != DeviceKind::meta; ++i) {
                    EXPECT_NEAR(got[i], y[i], 4e-7 * std::max(1.0, std::abs(gate_up[i]))) << gate_up[i];
                  }
                  return {got};
                },
                {y},
                2e-6});
  }
}

TEST(Gated, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView wide = world.in(DType::f32, {2, 8}, Values(16)), narrow = world.out(DType::f32, {2, 4});
  Stream& s = world.stream();
  expect_rejected([&] { gated_forward(s, {.gate_up = narrow, .y = narrow}); }, "gate_up has shape");
  expect_rejected([&] { gated_forward(s, {.gate_up = wide, .y = wide.columns(0, 4)}); }, "share memory");
  expect_rejected([&] { gated_backward(s, {.gate_up = wide, .dy = narrow}); }, "dgate_up is missing");
  expect_rejected(
      [&] { gated_backward(s, {.gate_up = wide, .dy = narrow, .dgate_up = wide, .y = wide.columns(4, 4)}); },
      "share memory");
}

}  // namespace gated_cases
}  // namespace hawser::ops
