#include "ops/adamw/adamw.h"

#include <limits>

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace adamw_cases {

using namespace testing;

struct Update {
  Values weight, exp_avg, exp_avg_sq, compute;
};

// torch.optim.AdamW (foreach=False, amsgrad=False), one step, in float64.
Update torch_step(const Values& weight, const Values& gradient, const Values& m, const Values& v, double lr,
                  double beta1, double beta2, double epsilon, double decay, std::int64_t step, double coefficient) {
  Update out;
  const double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
  for (std::size_t i = 0; i < weight.size(); ++i) {
    const double g = gradient[i] * coefficient;
    double w = weight[i] * (1 - lr * decay);
    out.exp_avg.push_back(m[i] + (1 - beta1) * (g - m[i]));
    out.exp_avg_sq.push_back(v[i] * beta2 + (1 - beta2) * g * g);
    w -= lr / correction1 * out.exp_avg[i] / (std::sqrt(out.exp_avg_sq[i]) / std::sqrt(correction2) + epsilon);
    out.weight.push_back(w);
    out.compute.push_back(rounded(w, DType::bf16));
  }
  return out;
}

TEST(AdamW, FollowsTorch) {
  for (const DType gradient_type : {DType::f32, DType::bf16}) {
    for (const std::int64_t n : {1, 37, 9000}) {
      const auto weight = random_values(n, 1), gradient = random_values(n, 2, gradient_type),
                 m = random_values(n, 3, DType::f32, 0.1);
      Values v = random_values(n, 4, DType::f32, 0.1);
      for (double& x : v) x = rounded(x * x, DType::f32);
      const Update expected = torch_step(weight, gradient, m, v, 0.01, 0.9, 0.95, 1e-8, 0.1, 7, 0.5);
      const AdamHyper hyper = adam_hyper(0.01, 0.9, 0.95, 7);
      check_case({cat("adamw ", n),
                  [&](World& world) -> std::vector<Values> {
                    const AdamW args{
                        .weight = world.in_out(DType::f32, {n}, weight),
                        .gradient = world.in(gradient_type, {n}, gradient),
                        .exp_avg = world.in_out(DType::f32, {n}, m),
                        .exp_avg_sq = world.in_out(DType::f32, {n}, v),
                        .compute_weight = world.out(DType::bf16, {n}),
                        .hyper = world.in(DType::f32, {3},
                                          {hyper.learning_rate, hyper.bias_correction1, hyper.bias_correction2}),
                        .coefficient = world.in(DType::f32, {1}, {0.5}),
                        .skip = world.in(DType::i32, {1}, {0}),
                        .beta1 = 0.9,
                        .beta2 = 0.95,
                        .epsilon = 1e-8,
                        .weight_decay = 0.1};
                    adamw(world.stream(), args);
                    const Values w = world.values(args.weight), compute = world.values(args.compute_weight);
                    for (std::size_t i = 0; i < compute.size(); ++i) EXPECT_EQ(compute[i], rounded(w[i], DType::bf16));
                    return {w, world.values(args.exp_avg), world.values(args.exp_avg_sq)};
                  },
                  {expected.weight, expected.exp_avg, expected.exp_avg_sq},
                  1e-6});
    }
  }
}

TEST(AdamW, BiasCorrectionsFollowTheStep) {
  for (const std::int32_t step : {0, 1, 7, 1000, 100000}) {
    const AdamHyper expected = adam_hyper(0.01, 0.9, 0.999, std::max(1, step));
    check_case({cat("adam_hyper ", step),
                [&](World& world) -> std::vector<Values> {
                  const AdamHyperOfStep args{.learning_rate = world.in(DType::f32, {1}, {0.01}),
                                             .step = world.in(DType::i32, {1}, {static_cast<double>(step)}),
                                             .hyper = world.out(DType::f32, {3}),
                                             .beta1 = 0.9,
                                             .beta2 = 0.999};
                  adam_hyper(world.stream(), args);
                  return {world.values(args.hyper)};
                },
                {{expected.learning_rate, expected.bias_correction1, expected.bias_correction2}},
                0});
  }
}

TEST(AdamW, SkipChangesNothing) {
  for (const DeviceKind kind : devices()) {
    World world(kind, 1);
    const TensorView w = world.in_out(DType::f32, {2}, {1, 2}), m = world.in_out(DType::f32, {2}, {3, 4}),
                     v = world.in_out(DType::f32, {2}, {5, 6});
    adamw(world.stream(), {.weight = w,
                           .gradient = world.in(DType::f32, {2}, {1, 1}),
                           .exp_avg = m,
                           .exp_avg_sq = v,
                           .hyper = world.in(DType::f32, {3}, {0.1, 1, 1}),
                           .skip = world.in(DType::i32, {1}, {1}),
                           .weight_decay = 0.5});
    EXPECT_EQ(world.values(w), (Values{1, 2}));
    EXPECT_EQ(world.values(m), (Values{3, 4}));
    EXPECT_EQ(world.values(v), (Values{5, 6}));
  }
}

// The amaxes are those of a pass over the weights after the update, also if a step is skipped; the rest is as without.
TEST(AdamW, RecordsTheAmaxesOfParts) {
  struct Range {
    std::int64_t count, at;  // `at`: first element in its tensors, so that they may be unaligned
    std::vector<EqualMatrices> matrices;
  };
  std::vector<EqualMatrices> many;
  for (std::int64_t i = 0; i < 6; ++i) many.push_back({3 + 600 * i, 60 + i, 9, 9 * i});
  for (std::int64_t i = 6; i < 20; ++i) many.push_back({3 + 600 * i, 500, 1, 48 + i});
  const std::vector<Range> ranges{{1, 0, {{0, 1, 1, 2}}},
                                  {9000, 0, {{-100, 4000, 2, 0}, {8192, 1000, 1, 2}}},
                                  {9001, 1, {{128, 2048, 4, 1}}},
                                  {13000, 0, many}};
  for (const DeviceKind device : devices()) {
    for (const DType gradient_type : {DType::f32, DType::bf16}) {
      for (const Range& range : ranges) {
        for (const bool skips : {false, true}) {
          World world(device, 2);
          const std::int64_t n = range.count + range.at;
          const AdamHyper hyper = adam_hyper(0.01, 0.9, 0.95, 7);
          const TensorView hyper_view = world.in(DType::f32, {3},
                                                 {hyper.learning_rate, hyper.bias_correction1, hyper.bias_correction2}),
                           skip = world.in(DType::i32, {1}, {skips ? 1.0 : 0.0}),
                           gradient = world.in(gradient_type, {n}, random_values(n, 2, gradient_type))
                                          .rows(range.at, range.count),
                           amax = world.in_out(DType::f32, {70}, Values(70)), expected = world.out(DType::f32, {70});
          const auto updated = [&](const TensorView& to, const std::vector<EqualMatrices>& matrices) {
            const auto own = [&](std::uint64_t seed, bool positive) {
              Values values = random_values(n, seed, DType::f32, 0.1);
              for (double& x : values) x = positive ? std::abs(x) : x;
              return world.in_out(DType::f32, {n}, values).rows(range.at, range.count);
            };
            const AdamW args{.weight = own(1, false),
                             .gradient = gradient,
                             .exp_avg = own(3, false),
                             .exp_avg_sq = own(4, true),
                             .compute_weight = world.out(DType::bf16, {n}).rows(range.at, range.count),
                             .hyper = hyper_view,
                             .skip = skip,
                             .amax = to,
                             .matrices = matrices,
                             .weight_decay = 0.1};
            adamw(world.stream(), args);
            return args;
          };
          const AdamW measured = updated(amax, range.matrices), plain = updated({}, {});
          amax_of_matrices(world.stream(), {.x = plain.weight, .amax = expected, .matrices = range.matrices});
          const std::string what = cat(to_string(gradient_type), " ", n, skips ? ", skipped" : "");
          expect_same_bits(world.values(amax), world.values(expected), cat("amax ", what));
          for (const auto member : {&AdamW::weight, &AdamW::exp_avg, &AdamW::exp_avg_sq}) {
            expect_same_bits(world.values(measured.*member), world.values(plain.*member), what);
          }
          if (!skips) {
            expect_same_bits(world.values(measured.compute_weight), world.values(plain.compute_weight), what);
          }
          EXPECT_GT(world.values(amax)[2], 0) << what;
          adamw(world.stream(), measured);  // a second step raises what is there
          world.check_gaps();
        }
      }
    }
  }
}

// NaN is above all magnitudes, with one bit pattern; an amax is raised, never lowered.
TEST(AdamW, RecordsNaNAndRaisesAmaxes) {
  for (const DeviceKind device : devices()) {
    World world(device, 1);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const TensorView amax = world.in_out(DType::f32, {3}, {50, 0.25, 0});
    adamw(world.stream(), {.weight = world.in_out(DType::f32, {6}, {1, -2, 3, -0.125, nan, 5}),
                           .gradient = world.in(DType::f32, {6}, Values(6)),
                           .exp_avg = world.in_out(DType::f32, {6}, Values(6)),
                           .exp_avg_sq = world.in_out(DType::f32, {6}, Values(6)),
                           .hyper = world.in(DType::f32, {3}, {0, 1, 1}),
                           .amax = amax,
                           .matrices = {{.begin = 0, .size = 2, .count = 3}}});
    const Values got = world.values(amax);
    EXPECT_EQ(got[0], 50);
    EXPECT_EQ(got[1], 3);
    EXPECT_TRUE(std::isnan(got[2]));
  }
}

TEST(AdamW, WithAmaxesRecordsItsAccesses) {
  check_case({"adamw with amaxes",
              [&](World& world) -> std::vector<Values> {
                const AdamW args{.weight = world.in_out(DType::f32, {4}, {1, -2, 3, 4}),
                                 .gradient = world.in(DType::f32, {4}, Values(4)),
                                 .exp_avg = world.in_out(DType::f32, {4}, Values(4)),
                                 .exp_avg_sq = world.in_out(DType::f32, {4}, Values(4)),
                                 .hyper = world.in(DType::f32, {3}, {0.5, 1, 1}),
                                 .amax = world.in_out(DType::f32, {2}, {0, 9}),
                                 .matrices = {{.begin = 0, .size = 2, .count = 2}},
                                 .weight_decay = 0.5};
                adamw(world.stream(), args);
                return {world.values(args.weight), world.values(args.amax)};
              },
              {{0.75, -1.5, 2.25, 3}, {1.5, 9}},
              0});
}

TEST(AdamW, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const AdamW good{.weight = world.in_out(DType::f32, {4}, Values(4)),
                   .gradient = world.in(DType::f32, {4}, Values(4)),
                   .exp_avg = world.in_out(DType::f32, {4}, Values(4)),
                   .exp_avg_sq = world.in_out(DType::f32, {4}, Values(4)),
                   .hyper = world.in(DType::f32, {3}, {1, 1, 1})};
  const auto rejected = [&](const std::function<void(AdamW&)>& spoil, const std::string& matrix) {
    AdamW args = good;
    spoil(args);
    expect_rejected([&] { adamw(world.stream(), args); }, matrix);
  };
  rejected([&](auto& a) { a.exp_avg = a.exp_avg.rows(0, 3); }, "exp_avg has shape");
  rejected([&](auto& a) { a.exp_avg = a.exp_avg_sq; }, "share memory");
  rejected([&](auto& a) { a.hyper = TensorView(); }, "hyper is missing");
  rejected([&](auto& a) { a.compute_weight = world.out(DType::f32, {4}); }, "compute_weight is float32");
  rejected([&](auto& a) { a.beta1 = 1.0; }, "beta1 1");
  rejected([&](auto& a) { a.matrices = {{0, 4, 1, 0}}; }, "matrices [0, 1) of 0");
  rejected([&](auto& a) { a.amax = a.weight; }, "share memory");
  expect_rejected([] { adam_hyper(0.1, 0.9, 0.95, 0); }, "at least 1");
}

}  // namespace adamw_cases
}  // namespace hawser::ops
