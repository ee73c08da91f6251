#include "ops/adamw/adamw.h"

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace {

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

TEST(AdamW, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const AdamW good{.weight = world.in_out(DType::f32, {4}, Values(4)),
                   .gradient = world.in(DType::f32, {4}, Values(4)),
                   .exp_avg = world.in_out(DType::f32, {4}, Values(4)),
                   .exp_avg_sq = world.in_out(DType::f32, {4}, Values(4)),
                   .hyper = world.in(DType::f32, {3}, {1, 1, 1})};
  const auto rejected = [&](const std::function<void(AdamW&)>& spoil, const std::string& part) {
    AdamW args = good;
    spoil(args);
    expect_rejected([&] { adamw(world.stream(), args); }, part);
  };
  rejected([&](auto& a) { a.exp_avg = a.exp_avg.rows(0, 3); }, "exp_avg has shape");
  rejected([&](auto& a) { a.exp_avg = a.exp_avg_sq; }, "share memory");
  rejected([&](auto& a) { a.hyper = TensorView(); }, "hyper is missing");
  rejected([&](auto& a) { a.compute_weight = world.out(DType::f32, {4}); }, "compute_weight is float32");
  rejected([&](auto& a) { a.beta1 = 1.0; }, "beta1 1");
  expect_rejected([] { adam_hyper(0.1, 0.9, 0.95, 0); }, "at least 1");
}

}  // namespace
}  // namespace hawser::ops
