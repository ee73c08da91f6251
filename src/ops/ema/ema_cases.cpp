#include "ops/ema/ema.h"
#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace ema_cases {

using namespace testing;

Ema arguments(World& world, const Values& weight, const Values& average, DType dtype, int updates, double decay) {
  const auto n = static_cast<std::int64_t>(weight.size());
  return {.weight = world.in(dtype, {n}, weight),
          .average = world.in_out(DType::f32, {n}, average),
          .updates = world.in(DType::i32, {1}, {static_cast<double>(updates)}),
          .skip = world.in(DType::i32, {1}, {0}),
          .decay = decay};
}

TEST(Ema, IsTheAverageOfTheFormula) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t n : {1, 37, 9000}) {
      for (const int updates : {1, 2, 1000}) {
        for (const double decay : {0.0, 0.75, 0.9999}) {
          const Values weight = random_values(n, 1, dtype), average = random_values(n, 2);
          Values expected;
          for (std::size_t i = 0; i < weight.size(); ++i) {
            expected.push_back(updates == 1 ? weight[i] : average[i] + (1 - decay) * (weight[i] - average[i]));
          }
          check_case({cat("ema ", n, " ", to_string(dtype), " ", updates, " ", decay),
                      [&](World& world) -> std::vector<Values> {
                        const Ema args = arguments(world, weight, average, dtype, updates, decay);
                        ema(world.stream(), args);
                        return {world.values(args.average)};
                      },
                      {expected},
                      1e-6});
        }
      }
    }
  }
}

TEST(Ema, SkipChangesNothing) {
  for (const DeviceKind device : devices()) {
    World world(device, 1);
    Ema args = arguments(world, Values(5, 1.0), Values(5, 3.0), DType::f32, 1, 0.5);
    args.skip = world.in(DType::i32, {1}, {2});
    ema(world.stream(), args);
    EXPECT_EQ(world.values(args.average), Values(5, 3.0));
  }
}

TEST(Ema, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const Ema good = arguments(world, Values(4), Values(4), DType::f32, 1, 0.5);
  const auto rejected = [&](const std::function<void(Ema&)>& spoil, const std::string& text) {
    Ema args = good;
    spoil(args);
    expect_rejected([&] { ema(world.stream(), args); }, text);
  };
  rejected([&](auto& a) { a.average = a.average.rows(0, 3); }, "average has shape");
  rejected([&](auto& a) { a.average = a.weight; }, "share memory");
  rejected([&](auto& a) { a.updates = TensorView(); }, "updates is missing");
  rejected([&](auto& a) { a.decay = 1; }, "decay 1");
}

}  // namespace ema_cases
}  // namespace hawser::ops
