#include "ops/activation/tanh.h"

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace tanh_cases {

using namespace testing;

Values tanh_of(const Values& x) {
  Values out;
  for (const double value : x) out.push_back(std::tanh(value));
  return out;
}

TEST(Tanh, AgreesWithFloat64AndFiniteDifferences) {
  for (const DType act : {DType::f32, DType::bf16}) {
    for (const std::int64_t gap : {1, 0}) {
      const Shape shape = gap > 0 ? Shape{5, 12} : Shape{9, 64};  // a row of 12 fills 16 bytes in float32 alone
      Values x = random_values(shape.elements(), 1, act, 2.0);
      x[0] = rounded(-40.0, act);  // both tails
      x[1] = rounded(40.0, act);
      const Values dy = random_values(shape.elements(), 2, act), y = tanh_of(x);
      Values dx;
      for (std::size_t i = 0; i < x.size(); ++i) {
        dx.push_back(dy[i] * (std::tanh(x[i] + 1e-6) - std::tanh(x[i] - 1e-6)) / 2e-6);
      }
      const double tolerance = act == DType::bf16 ? kBf16Tolerance : 2e-6;
      const std::string text = cat(to_string(act), " ", shape[1], gap > 0 ? " padded" : "");
      const auto backward = [&](bool again) {
        return [&, again](World& world) -> std::vector<Values> {
          const TanhBackward args{.x = world.in(act, shape, x, gap),
                                  .dy = world.in(act, shape, dy, 2 * gap),
                                  .dx = world.out(act, shape, 3 * gap),
                                  .y = again ? world.out(act, shape, 4 * gap) : TensorView()};
          tanh_backward(world.stream(), args);
          std::vector<Values> out{world.values(args.dx)};
          if (again) out.push_back(world.values(args.y));
          return out;
        };
      };
      check_case({"tanh_forward " + text,
                  [&](World& world) -> std::vector<Values> {
                    const TanhForward args{.x = world.in(act, shape, x, gap), .y = world.out(act, shape, 2 * gap)};
                    tanh_forward(world.stream(), args);
                    return {world.values(args.y)};
                  },
                  {y},
                  tolerance});
      check_case({"tanh_backward " + text, backward(false), {dx}, tolerance});
      check_case({"tanh_backward with y " + text, backward(true), {dx, y}, tolerance});
      World world(DeviceKind::cpu, 2);
      const TensorView both = world.in_out(act, shape, x), dy_view = world.in_out(act, shape, dy);
      tanh_backward(world.stream(), {.x = both, .dy = dy_view, .dx = both, .y = dy_view});
      expect_close(world.values(both), dx, tolerance, "in place");
      expect_close(world.values(dy_view), y, tolerance, "y over dy");
    }
  }
}

TEST(Tanh, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView x = world.in_out(DType::f32, {2, 4}, Values(8)), dy = world.in(DType::f32, {2, 4}, Values(8));
  Stream& s = world.stream();
  expect_rejected([&] { tanh_forward(s, {.x = x, .y = x}); }, "share memory");
  expect_rejected([&] { tanh_backward(s, {.x = x, .dy = dy, .dx = dy}); }, "share memory");
  expect_rejected([&] { tanh_forward(s, {.x = world.in(DType::f32, {2, 5}, Values(10)), .y = x}); }, "x has shape");
}

}  // namespace tanh_cases
}  // namespace hawser::ops
