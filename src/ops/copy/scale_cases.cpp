#include "ops/copy/scale.h"

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace scale_cases {

using namespace testing;

TEST(Scale, MultipliesInPlace) {
  for (const DType act : {DType::f32, DType::bf16}) {
    const Values x = random_values(9001, 1, act);
    Values expected = x;
    for (double& value : expected) value = rounded(value * 0.25, act);
    check_case({cat("scale ", to_string(act)),
                [&](World& world) -> std::vector<Values> {
                  const Scale args{.x = world.in_out(act, {9001}, x), .factor = 0.25};
                  scale(world.stream(), args);
                  return {world.values(args.x)};
                },
                {expected},
                0});
  }
  World world(DeviceKind::cpu, 1);
  expect_rejected([&] { scale(world.stream(), {.x = world.in(DType::i32, {2}, Values(2))}); }, "x is int32");
}

}  // namespace scale_cases
}  // namespace hawser::ops
