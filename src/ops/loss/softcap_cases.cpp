#include "ops/loss/softcap.h"

#include <limits>

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace softcap_cases {

using namespace testing;

// Logits far below the cap, near to it and far above it.
TEST(Softcap, AgreesWithFloat64) {
  constexpr std::int64_t kRows = 5, kColumns = 83;
  for (const double scale : {1e-3, 1.0, 30.0, 1e4}) {
    for (const std::int64_t pad : {0, 3}) {
      const Values y = random_values(kRows * kColumns, 1, DType::f32, scale);
      Values expected;
      for (const double value : y) expected.push_back(30 * std::tanh(value / 30));
      check_case({cat("softcap of logits of ", scale, ", pad ", pad),
                  [&](World& world) -> std::vector<Values> {
                    const TensorView view = world.in_out(DType::f32, {kRows, kColumns}, y, pad);
                    softcap(world.stream(), {.y = view, .softcap = 30});
                    Values got = world.values(view);
                    for (double& value : got) value /= scale;  // relative to their size
                    return {got};
                  },
                  {[&] {
                    for (double& value : expected) value /= scale;
                    return expected;
                  }()},
                  2e-6});
    }
  }
}

TEST(Softcap, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView y = world.in_out(DType::f32, {2, 3}, Values(6));
  const auto rejected = [&](double cap, const std::string& part) {
    expect_rejected([&] { softcap(world.stream(), {.y = y, .softcap = cap}); }, part);
  };
  rejected(0, "softcap is 0");
  rejected(std::numeric_limits<double>::infinity(), "softcap is inf");
  rejected(std::numeric_limits<double>::quiet_NaN(), "softcap is nan");
  expect_rejected(
      [&] {
        softcap(world.stream(), {.y = world.in(DType::bf16, {2, 3}, Values(6)), .softcap = 1});
      },
      "y is bfloat16");
}

}  // namespace softcap_cases
}  // namespace hawser::ops
