#include "ops/activation/swiglu.h"

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace {

using namespace testing;

Values forward(const Values& gate_up, std::int64_t hidden) {
  Values out;
  for (std::size_t row = 0; row < gate_up.size(); row += static_cast<std::size_t>(2 * hidden)) {
    for (std::int64_t f = 0; f < hidden; ++f) {
      const double gate = gate_up[row + f], up = gate_up[row + hidden + f];
      out.push_back(gate / (1 + std::exp(-gate)) * up);
    }
  }
  return out;
}

TEST(Swiglu, AgreesWithFloat64AndFiniteDifferences) {
  for (const DType act : {DType::f32, DType::bf16}) {
    for (const std::int64_t hidden : {1, 20, 48}) {
      const std::int64_t tokens = 5, pad = hidden % 16 == 0 ? 8 : 1;  // aligned and unaligned rows
      const Shape wide{tokens, 2 * hidden}, narrow{tokens, hidden};
      Values gate_up = random_values(2 * tokens * hidden, 1, act, 3.0);
      gate_up[0] = rounded(-100.0, act);  // saturates the sigmoid on both sides
      gate_up.back() = rounded(90.0, act);
      const Values dy = random_values(tokens * hidden, 2, act);
      const Values y = forward(gate_up, hidden);
      const Values given = gate_up;
      const double tolerance = act == DType::bf16 ? kBf16Tolerance : 2e-6;
      check_case({cat("swiglu_forward ", to_string(act), hidden),
                  [&](World& world) -> std::vector<Values> {
                    const SwigluForward args{.gate_up = world.in(act, wide, given, 3 * pad),
                                             .y = world.out(act, narrow, 2 * pad)};
                    swiglu_forward(world.stream(), args);
                    return {world.values(args.y)};
                  },
                  {y},
                  tolerance});
      const Values dgate_up = numeric_gradient([&] { return dot(forward(gate_up, hidden), dy); }, gate_up);
      check_case({cat("swiglu_backward ", to_string(act), hidden),
                  [&](World& world) -> std::vector<Values> {
                    const SwigluBackward args{.gate_up = world.in(act, wide, given, 3 * pad),
                                              .dy = world.in(act, narrow, dy, pad),
                                              .dgate_up = world.out(act, wide, 5 * pad),
                                              .y = world.out(act, narrow, 4 * pad)};
                    swiglu_backward(world.stream(), args);
                    return {world.values(args.dgate_up), world.values(args.y)};
                  },
                  {dgate_up, y},
                  tolerance});
      for (const DeviceKind kind : devices()) {
        World world(kind, 2);
        const TensorView both = world.in_out(act, wide, given), dy_view = world.in_out(act, narrow, dy);
        swiglu_backward(world.stream(), {.gate_up = both, .dy = dy_view, .dgate_up = both, .y = dy_view});
        expect_close(world.values(both), dgate_up, tolerance, "in place");
        expect_close(world.values(dy_view), y, tolerance, "y over dy");
      }
    }
  }
}

TEST(Swiglu, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView wide = world.in(DType::f32, {2, 8}, Values(16)), narrow = world.out(DType::f32, {2, 4});
  Stream& s = world.stream();
  expect_rejected([&] { swiglu_forward(s, {.gate_up = narrow, .y = narrow}); }, "gate_up has shape");
  expect_rejected([&] { swiglu_forward(s, {.gate_up = wide, .y = wide.columns(0, 4)}); }, "share memory");
  expect_rejected([&] { swiglu_backward(s, {.gate_up = wide, .dy = narrow}); }, "dgate_up is missing");
  expect_rejected(
      [&] { swiglu_backward(s, {.gate_up = wide, .dy = narrow, .dgate_up = wide, .y = wide.columns(4, 4)}); },
      "share memory");
}

}  // namespace
}  // namespace hawser::ops
