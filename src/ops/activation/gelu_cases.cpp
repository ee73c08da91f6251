#include "ops/activation/gelu.h"

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace gelu_cases {

using namespace testing;

Values gelu(const Values& x, Gelu kind) {
  Values out;
  for (const double value : x) {
    const double inner =
        kind == Gelu::exact
            ? std::erf(value / std::sqrt(2.0))
            : std::tanh(std::sqrt(2 / 3.14159265358979323846) * (value + 0.044715 * std::pow(value, 3)));
    out.push_back(value / 2 * (1 + inner));
  }
  return out;
}

TEST(Gelu, AgreesWithFloat64AndFiniteDifferences) {
  for (const Gelu kind : {Gelu::exact, Gelu::tanh}) {
    for (const DType act : {DType::f32, DType::bf16}) {
      const Shape shape{5, 12};  // a row fills 16 bytes in float32 alone
      Values x = random_values(60, 1, act, 3.0);
      x[0] = rounded(-40.0, act);  // both tails
      x[1] = rounded(40.0, act);
      const Values dy = random_values(60, 2, act), y = gelu(x, kind), given = x;
      const Values dx = numeric_gradient([&] { return dot(gelu(x, kind), dy); }, x);
      const double tolerance = act == DType::bf16 ? kBf16Tolerance : 2e-6;
      check_case({cat("gelu_forward ", to_string(act), static_cast<int>(kind)),
                  [&](World& world) -> std::vector<Values> {
                    const GeluForward args{
                        .x = world.in(act, shape, given, 1), .y = world.out(act, shape, 2), .kind = kind};
                    gelu_forward(world.stream(), args);
                    return {world.values(args.y)};
                  },
                  {y},
                  tolerance});
      check_case({cat("gelu_backward ", to_string(act), static_cast<int>(kind)),
                  [&](World& world) -> std::vector<Values> {
                    const GeluBackward args{.x = world.in(act, shape, given, 1),
                                            .dy = world.in(act, shape, dy, 2),
                                            .dx = world.out(act, shape, 3),
                                            .y = world.out(act, shape, 4),
                                            .kind = kind};
                    gelu_backward(world.stream(), args);
                    return {world.values(args.dx), world.values(args.y)};
                  },
                  {dx, y},
                  tolerance});
      World world(DeviceKind::cpu, 2);
      const TensorView both = world.in_out(act, shape, given), dy_view = world.in_out(act, shape, dy);
      gelu_backward(world.stream(), {.x = both, .dy = dy_view, .dx = both, .y = dy_view, .kind = kind});
      expect_close(world.values(both), dx, tolerance, "in place");
      expect_close(world.values(dy_view), y, tolerance, "y over dy");
    }
  }
}

TEST(Gelu, AgreesWithFloat64InDenseRows) {
  for (const Gelu kind : {Gelu::exact, Gelu::tanh}) {
    for (const DType act : {DType::f32, DType::bf16}) {
      const Shape shape{33, 64};
      const Values x = random_values(shape.elements(), 1, act, 2.0), dy = random_values(shape.elements(), 2, act);
      const Values y = gelu(x, kind), up = gelu(plus(x, Values(x.size(), 1e-6)), kind),
                   down = gelu(plus(x, Values(x.size(), -1e-6)), kind);
      Values dx;
      for (std::size_t i = 0; i < x.size(); ++i) dx.push_back(dy[i] * (up[i] - down[i]) / 2e-6);
      check_case({cat("gelu dense ", to_string(act), static_cast<int>(kind)),
                  [&](World& world) -> std::vector<Values> {
                    const GeluBackward args{.x = world.in(act, shape, x),
                                            .dy = world.in(act, shape, dy),
                                            .dx = world.out(act, shape),
                                            .y = world.out(act, shape),
                                            .kind = kind};
                    gelu_backward(world.stream(), args);
                    return {world.values(args.dx), world.values(args.y)};
                  },
                  {dx, y},
                  act == DType::bf16 ? kBf16Tolerance : 2e-6});
    }
  }
}

TEST(Gelu, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView x = world.in_out(DType::f32, {2, 4}, Values(8)), dy = world.in(DType::f32, {2, 4}, Values(8));
  Stream& s = world.stream();
  expect_rejected([&] { gelu_forward(s, {.x = x, .y = x}); }, "share memory");
  expect_rejected([&] { gelu_backward(s, {.x = x, .dy = dy, .dx = dy}); }, "share memory");
  expect_rejected([&] { gelu_forward(s, {.x = world.in(DType::f32, {2, 5}, Values(10)), .y = x}); }, "x has shape");
}

}  // namespace gelu_cases
}  // namespace hawser::ops
