#include "ops/update/update.h"

#include "ops/adamw/adamw.h"
#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace update_cases {

using namespace testing;

struct Rule {
  const char* name;
  double momentum = 0;
  UpdateRule rule;
  bool nesterov = false;

  bool has_first() const { return rule != UpdateRule::sgd || momentum > 0; }
  bool has_second() const { return rule == UpdateRule::adamw; }
};
constexpr Rule kRules[] = {{"adamw", 0, UpdateRule::adamw},
                           {"lion", 0, UpdateRule::lion},
                           {"sgd", 0, UpdateRule::sgd},
                           {"momentum", 0.9, UpdateRule::sgd},
                           {"nesterov", 0.9, UpdateRule::sgd, true}};
constexpr double kRate = 0.01, kBeta1 = 0.9, kBeta2 = 0.95, kEpsilon = 1e-8, kDecay = 0.1, kCoefficient = 0.5;
constexpr std::int64_t kStep = 7;

struct Stepped {
  Values weight, first, second;
};

// One step in float64: torch.optim.AdamW and SGD, and algorithm 2 of Chen et al.
Stepped stepped(const Rule& rule, const Stepped& before, const Values& gradient) {
  Stepped out = before;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    double g = gradient[i] * kCoefficient, w = before.weight[i];
    const double m = before.first[i], v = before.second[i];
    if (rule.rule == UpdateRule::adamw) {
      out.first[i] = kBeta1 * m + (1 - kBeta1) * g;
      out.second[i] = kBeta2 * v + (1 - kBeta2) * g * g;
      const double root = std::sqrt(out.second[i] / (1 - std::pow(kBeta2, kStep)));
      w = w * (1 - kRate * kDecay) - kRate / (1 - std::pow(kBeta1, kStep)) * out.first[i] / (root + kEpsilon);
    } else if (rule.rule == UpdateRule::lion) {
      const double direction = kBeta1 * m + (1 - kBeta1) * g;
      w = w * (1 - kRate * kDecay) - kRate * (direction > 0 ? 1 : direction < 0 ? -1 : 0);
      out.first[i] = kBeta2 * m + (1 - kBeta2) * g;
    } else {
      g += kDecay * w;
      out.first[i] = rule.momentum * m + g;
      w -= kRate * (rule.nesterov ? g + rule.momentum * out.first[i] : out.first[i]);
    }
    out.weight[i] = w;
  }
  return out;
}

Stepped state(std::int64_t n, DType weight, DType states) {
  Stepped out{random_values(n, 1, weight), random_values(n, 3, states, 0.1), random_values(n, 4, states, 0.1)};
  for (double& x : out.second) x = rounded(x * x, states);
  return out;
}

Update arguments(World& world, const Rule& rule, const Stepped& before, const Values& gradient, DType weight,
                 DType states, DType compute) {
  const auto n = static_cast<std::int64_t>(gradient.size());
  const AdamHyper hyper = adam_hyper(kRate, kBeta1, kBeta2, kStep);
  return {.rule = rule.rule,
          .weight = world.in_out(weight, {n}, before.weight),
          .gradient = world.in(DType::f32, {n}, gradient),
          .first = rule.has_first() ? world.in_out(states, {n}, before.first) : TensorView(),
          .second = rule.has_second() ? world.in_out(states, {n}, before.second) : TensorView(),
          .compute_weight = world.out(compute, {n}),
          .hyper = world.in(DType::f32, {3}, {hyper.learning_rate, hyper.bias_correction1, hyper.bias_correction2}),
          .coefficient = world.in(DType::f32, {1}, {kCoefficient}),
          .skip = world.in(DType::i32, {1}, {0}),
          .beta1 = kBeta1,
          .beta2 = kBeta2,
          .epsilon = kEpsilon,
          .momentum = rule.momentum,
          .nesterov = rule.nesterov,
          .weight_decay = kDecay};
}

TEST(Update, FollowsEveryRuleInEveryDType) {
  for (const Rule& rule : kRules) {
    for (const DType weight : {DType::f32, DType::bf16}) {
      for (const DType states : {DType::f32, DType::bf16}) {
        for (const std::int64_t n : {1, 37, 9000}) {
          const bool narrow = weight == DType::bf16 || states == DType::bf16;
          const Stepped before = state(n, weight, states);
          const Values gradient = random_values(n, 2);
          const Stepped expected = stepped(rule, before, gradient);
          std::vector<Values> outputs{expected.weight};
          if (rule.has_first()) outputs.push_back(expected.first);
          if (rule.has_second()) outputs.push_back(expected.second);
          const DType compute = n == 37 ? DType::f32 : DType::bf16;
          check_case({cat(rule.name, " ", n, " ", to_string(weight), " ", to_string(states)),
                      [&](World& world) -> std::vector<Values> {
                        const Update args = arguments(world, rule, before, gradient, weight, states, compute);
                        update(world.stream(), args);
                        const Values w = world.values(args.weight), c = world.values(args.compute_weight);
                        for (std::size_t i = 0; i < c.size(); ++i) EXPECT_EQ(c[i], rounded(w[i], compute));
                        std::vector<Values> got{w};
                        if (rule.has_first()) got.push_back(world.values(args.first));
                        if (rule.has_second()) got.push_back(world.values(args.second));
                        return got;
                      },
                      outputs, narrow ? kBf16Tolerance : 2e-6});
        }
      }
    }
  }
}

TEST(Update, SkipChangesNothing) {
  for (const DeviceKind device : devices()) {
    World world(device, 1);
    const Stepped before = state(5, DType::bf16, DType::f32);
    Update args = arguments(world, kRules[0], before, Values(5, 1.0), DType::bf16, DType::f32, DType::bf16);
    args.skip = world.in(DType::i32, {1}, {2});
    update(world.stream(), args);
    EXPECT_EQ(world.values(args.weight), before.weight);
    EXPECT_EQ(world.values(args.first), before.first);
    EXPECT_EQ(world.values(args.second), before.second);
  }
}

TEST(Update, LionOfNoGradientDecaysOnly) {
  for (const DeviceKind device : devices()) {
    World world(device, 1);
    Update args = arguments(world, kRules[1], {{1, 2}, {0, 0}, {0, 0}}, {0, 0}, DType::f32, DType::f32, DType::f32);
    args.hyper = world.in(DType::f32, {3}, {0.5, 1, 1});
    args.weight_decay = 0.5;
    update(world.stream(), args);
    EXPECT_EQ(world.values(args.weight), (Values{0.75, 1.5}));
  }
}

// SGD without momentum, of weights that lie `quarter` / 4 between two bf16 numbers after the step.
Values rounded_weights(World& world, const StochasticRounding& rounding, std::int64_t n, std::int32_t step,
                       int quarter) {
  const TensorView weight = world.in_out(DType::bf16, {n}, Values(static_cast<std::size_t>(n), 1.0));
  StochasticRounding of = rounding;
  of.step = world.in(DType::i32, {1}, {static_cast<double>(step)});
  update(world.stream(), {.rule = UpdateRule::sgd,
                          .weight = weight,
                          .gradient = world.in(DType::f32, {n}, Values(static_cast<std::size_t>(n), -quarter * 0x1p-9)),
                          .hyper = world.in(DType::f32, {3}, {1, 1, 1}),
                          .rounding = of});
  return world.values(weight);
}

TEST(Update, RoundsUpWithTheProbabilityOfTheRemainder) {
  constexpr std::int64_t kElements = 40000;
  const StochasticRounding rounding{
      .noise = {.key = RandomStream(5, "w").key(), .part = kElements, .whole = kElements}};
  for (const DeviceKind device : devices()) {
    for (const int quarter : {0, 1, 2, 3}) {
      World world(device, 1);
      const Values got = rounded_weights(world, rounding, kElements, 3, quarter);
      const auto up = std::count(got.begin(), got.end(), 1 + 0x1p-7);
      EXPECT_EQ(up + std::count(got.begin(), got.end(), 1.0), kElements);
      EXPECT_NEAR(static_cast<double>(up) / kElements, quarter / 4.0, quarter == 0 ? 0 : 0.01);
    }
  }
}

// An element has the same bits wherever its slice begins; another step or key has others.
TEST(Update, RoundsByTheElementOfTheGlobalTensor) {
  for (const DeviceKind device : devices()) {
    World world(device, 1);
    const PhiloxKey key = RandomStream(5, "w").key();
    const Values all = rounded_weights(world, {.noise = {.key = key, .part = 60, .whole = 60}}, 60, 3, 2);
    // [6, 10], of which a rank has columns 4 to 8, and a shard from element 7 of that slice on.
    const Values slice =
        rounded_weights(world, {.noise = {.key = key, .first = 7, .part = 4, .whole = 10, .begin = 4}}, 17, 3, 2);
    for (std::size_t i = 0; i < slice.size(); ++i) EXPECT_EQ(slice[i], all[(i + 7) / 4 * 10 + 4 + (i + 7) % 4]);
    EXPECT_NE(rounded_weights(world, {.noise = {.key = key, .part = 60, .whole = 60}}, 60, 4, 2), all);
    EXPECT_NE(rounded_weights(world, {.noise = {.key = RandomStream(6, "w").key(), .part = 60, .whole = 60}}, 60, 3, 2),
              all);
  }
}

TEST(Update, RoundsNoNumberToItself) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(rounded_stochastically(static_cast<float>(kInfinity), 0xffffu), 0x7f80u);
  EXPECT_EQ(rounded_stochastically(static_cast<float>(-kInfinity), 0xffffu), 0xff80u);
  EXPECT_EQ(rounded_stochastically(std::bit_cast<float>(0x7f800001u), 0) & 0x7fc0u, 0x7fc0u);
  EXPECT_EQ(rounded_stochastically(-1.5f, 0xffffu), 0xbfc0u);
}

TEST(Update, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const Stepped before{Values(4), Values(4), Values(4)};
  const Update good = arguments(world, kRules[0], before, Values(4), DType::f32, DType::f32, DType::bf16);
  const auto rejected = [&](const std::function<void(Update&)>& spoil, const std::string& text) {
    Update args = good;
    spoil(args);
    expect_rejected([&] { update(world.stream(), args); }, text);
  };
  rejected([&](auto& a) { a.first = a.first.rows(0, 3); }, "first has shape");
  rejected([&](auto& a) { a.first = a.second; }, "share memory");
  rejected([&](auto& a) { a.second = world.out(DType::bf16, {4}); }, "second is bfloat16");
  rejected([&](auto& a) { a.rule = UpdateRule::lion; }, "a second state of another rule");
  rejected([&](auto& a) { a.rule = UpdateRule::sgd, a.second = TensorView(); }, "a state of sgd without momentum");
  rejected([&](auto& a) { a.hyper = TensorView(); }, "hyper is missing");
  rejected([&](auto& a) { a.beta2 = 1.0; }, "beta2 1");
  rejected([&](auto& a) { a.momentum = 1.0; }, "momentum 1");
  rejected([&](auto& a) { a.rounding.noise.part = 0; }, "elements from 0, 0 of 1");
}

}  // namespace update_cases
}  // namespace hawser::ops
