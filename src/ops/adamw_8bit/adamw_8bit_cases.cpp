#include "ops/adamw_8bit/adamw_8bit.h"

#include <limits>

#include "ops/adamw/adamw.h"
#include "ops/adamw_8bit/code_book.h"
#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace adamw_8bit_cases {

using namespace testing;

constexpr double kRate = 0.01, kBeta1 = 0.9, kBeta2 = 0.95, kEpsilon = 1e-8, kDecay = 0.1, kCoefficient = 0.5;
constexpr std::int64_t kStep = 7;

struct State {
  Values weight, first, first_absmax, second, second_absmax;
};

State state_of(std::int64_t n, DType weight) {
  const std::int64_t blocks = ceil_div(n, kStateBlock);
  State out{.weight = random_values(n, 1, weight),
            .first_absmax = random_values(blocks, 4, DType::f32, 0.1),
            .second_absmax = random_values(blocks, 5, DType::f32, 0.1)};
  const RandomStream codes(1, "codes");
  for (std::int64_t i = 0; i < n; ++i) {
    out.first.push_back(static_cast<double>(codes.below(256, static_cast<std::uint64_t>(i))));
    out.second.push_back(static_cast<double>(codes.below(256, static_cast<std::uint64_t>(i), 1)));
  }
  for (Values* values : {&out.first_absmax, &out.second_absmax}) {
    for (double& x : *values) x = std::abs(x);
  }
  return out;
}

AdamW8bit arguments(World& world, const State& before, const Values& gradient, DType weight, DType compute) {
  const auto n = static_cast<std::int64_t>(gradient.size());
  const auto blocks = static_cast<std::int64_t>(before.first_absmax.size());
  const AdamHyper hyper = adam_hyper(kRate, kBeta1, kBeta2, kStep);
  return {.weight = world.in_out(weight, {n}, before.weight),
          .gradient = world.in(DType::f32, {n}, gradient),
          .exp_avg = world.in_out(DType::u8, {n}, before.first),
          .exp_avg_absmax = world.in_out(DType::f32, {blocks}, before.first_absmax),
          .exp_avg_sq = world.in_out(DType::u8, {n}, before.second),
          .exp_avg_sq_absmax = world.in_out(DType::f32, {blocks}, before.second_absmax),
          .compute_weight = world.out(compute, {n}),
          .hyper = world.in(DType::f32, {3}, {hyper.learning_rate, hyper.bias_correction1, hyper.bias_correction2}),
          .coefficient = world.in(DType::f32, {1}, {kCoefficient}),
          .skip = world.in(DType::i32, {1}, {0}),
          .beta1 = kBeta1,
          .beta2 = kBeta2,
          .epsilon = kEpsilon,
          .weight_decay = kDecay};
}

// A number that is halfway between two codes may become either, so moments are compared as numbers, within a code's
// distance to the next.
Values moments(const DynamicMap& book, const Values& codes, const Values& absmax) {
  Values out;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    out.push_back(book[static_cast<std::size_t>(codes[i])] * absmax[i / kStateBlock]);
  }
  return out;
}

TEST(AdamW8bit, UpdatesAsAdamWAndQuantizesItsMoments) {
  for (const DType weight : {DType::f32, DType::bf16}) {
    for (const std::int64_t n : {1, 300, 9000}) {
      const State before = state_of(n, weight);
      const Values gradient = random_values(n, 2);
      const Values m = moments(kSignedDynamicMap, before.first, before.first_absmax),
                   v = moments(kUnsignedDynamicMap, before.second, before.second_absmax);
      Values w, m_after, v_after, m_max(before.first_absmax.size()), v_max(m_max.size());
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        const double g = gradient[i] * kCoefficient;
        m_after.push_back(kBeta1 * m[i] + (1 - kBeta1) * g);
        v_after.push_back(kBeta2 * v[i] + (1 - kBeta2) * g * g);
        w.push_back(before.weight[i] * (1 - kRate * kDecay) -
                    kRate / (1 - std::pow(kBeta1, kStep)) * m_after[i] /
                        (std::sqrt(v_after[i] / (1 - std::pow(kBeta2, kStep))) + kEpsilon));
        m_max[i / kStateBlock] = std::max(m_max[i / kStateBlock], std::abs(m_after[i]));
        v_max[i / kStateBlock] = std::max(v_max[i / kStateBlock], v_after[i]);
      }
      const DType compute = n == 300 ? DType::f32 : DType::bf16;
      check_case({cat("adamw_8bit ", n, " ", to_string(weight)),
                  [&](World& world) -> std::vector<Values> {
                    const AdamW8bit args = arguments(world, before, gradient, weight, compute);
                    adamw_8bit(world.stream(), args);
                    const Values got = world.values(args.weight), rounded_to = world.values(args.compute_weight);
                    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(rounded_to[i], rounded(got[i], compute));
                    const auto check = [&](const DynamicMap& book, const TensorView& codes, const TensorView& absmax,
                                           const Values& expected) {
                      if (world.stream().kind() == DeviceKind::meta) return;
                      const Values numbers = moments(book, world.values(codes), world.values(absmax));
                      for (std::size_t i = 0; i < numbers.size(); ++i) {
                        const double largest = world.values(absmax)[i / kStateBlock];
                        // Half of the widest interval of the code book, which is that of the largest decade.
                        EXPECT_NEAR(numbers[i], expected[i], 0.0071 * largest + 1e-6) << i;
                        const auto code = static_cast<std::size_t>(world.values(codes)[i]);
                        EXPECT_EQ(static_cast<std::size_t>(nearest_code(book.data(), book[code])), code);
                      }
                    };
                    if (n <= 300) {
                      check(kSignedDynamicMap, args.exp_avg, args.exp_avg_absmax, m_after);
                      check(kUnsignedDynamicMap, args.exp_avg_sq, args.exp_avg_sq_absmax, v_after);
                    }
                    return {got, world.values(args.exp_avg_absmax), world.values(args.exp_avg_sq_absmax)};
                  },
                  {w, m_max, v_max},
                  weight == DType::bf16 ? kBf16Tolerance : 2e-6});
    }
  }
}

TEST(AdamW8bit, NearestCodes) {
  for (const DynamicMap* book : {&kSignedDynamicMap, &kUnsignedDynamicMap}) {
    EXPECT_EQ(book->back(), 1);
    EXPECT_TRUE(std::is_sorted(book->begin(), book->end()));
    for (int code = 0; code < 256; ++code) {
      const float here = (*book)[static_cast<std::size_t>(code)];
      EXPECT_EQ(nearest_code(book->data(), here), code);
      if (code == 255) continue;
      const float next = (*book)[static_cast<std::size_t>(code) + 1];
      EXPECT_EQ(nearest_code(book->data(), here + 0.4f * (next - here)), code);
      EXPECT_EQ(nearest_code(book->data(), here + 0.6f * (next - here)), code + 1);
    }
    EXPECT_EQ(nearest_code(book->data(), -1), 0);
  }
  EXPECT_EQ(kSignedDynamicMap[127], 0);
  EXPECT_EQ(kUnsignedDynamicMap[0], 0);
}

// A new state is all zeros: code 0 of the signed book is not 0, but its block's maximum is.
TEST(AdamW8bit, BeginsWithZerosAndStaysThere) {
  for (const DeviceKind device : devices()) {
    World world(device, 1);
    const Values zeros(300);
    AdamW8bit args = arguments(world, {Values(300, 2.0), zeros, {0, 0}, zeros, {0, 0}}, zeros, DType::f32, DType::f32);
    args.weight_decay = 0;
    adamw_8bit(world.stream(), args);
    EXPECT_EQ(world.values(args.weight), Values(300, 2.0));
    EXPECT_EQ(world.values(args.exp_avg), Values(300, 127.0));
    EXPECT_EQ(world.values(args.exp_avg_sq), zeros);
    EXPECT_EQ(world.values(args.exp_avg_absmax), (Values{0, 0}));
  }
}

TEST(AdamW8bit, SkipChangesNothing) {
  for (const DeviceKind device : devices()) {
    World world(device, 1);
    const State before = state_of(5, DType::f32);
    AdamW8bit args = arguments(world, before, Values(5, 1.0), DType::f32, DType::f32);
    args.skip = world.in(DType::i32, {1}, {1});
    adamw_8bit(world.stream(), args);
    EXPECT_EQ(world.values(args.weight), before.weight);
    EXPECT_EQ(world.values(args.exp_avg), before.first);
    EXPECT_EQ(world.values(args.exp_avg_sq_absmax), before.second_absmax);
  }
}

TEST(AdamW8bit, NaNIsVisible) {
  for (const DeviceKind device : devices()) {
    World world(device, 1);
    const AdamW8bit args = arguments(world, state_of(3, DType::f32), {1, std::numeric_limits<double>::quiet_NaN(), 1},
                                     DType::f32, DType::f32);
    adamw_8bit(world.stream(), args);
    EXPECT_TRUE(std::isnan(world.values(args.weight)[1]));
    EXPECT_TRUE(std::isnan(world.values(args.exp_avg_absmax)[0]));
  }
}

TEST(AdamW8bit, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const AdamW8bit good = arguments(world, state_of(300, DType::f32), Values(300), DType::f32, DType::f32);
  const auto rejected = [&](const std::function<void(AdamW8bit&)>& spoil, const std::string& text) {
    AdamW8bit args = good;
    spoil(args);
    expect_rejected([&] { adamw_8bit(world.stream(), args); }, text);
  };
  rejected([&](auto& a) { a.exp_avg = a.exp_avg.rows(0, 3); }, "exp_avg has shape");
  rejected([&](auto& a) { a.exp_avg = a.gradient; }, "exp_avg is float32");
  rejected([&](auto& a) { a.exp_avg_absmax = a.exp_avg_absmax.rows(0, 1); }, "exp_avg_absmax has shape");
  rejected([&](auto& a) { a.exp_avg = a.exp_avg_sq; }, "share memory");
  rejected([&](auto& a) { a.hyper = TensorView(); }, "hyper is missing");
  rejected([&](auto& a) { a.epsilon = 0; }, "epsilon 0");
}

}  // namespace adamw_8bit_cases
}  // namespace hawser::ops
