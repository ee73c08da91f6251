// Attention with soft-capped scores and with biases by distance.
#include "ops/attention/alibi.h"
#include "ops/attention/attention.h"
#include "ops/testing/attention_checks.h"

namespace hawser::ops {
namespace attention_scores_cases {

using namespace testing;

Values slopes_of(std::int64_t heads) {
  Values out;
  for (const float slope : alibi_slopes(heads)) out.push_back(slope);
  return out;
}

Problem with(Problem p, double softcap, bool slopes) {
  p.name += cat(", softcap ", softcap, slopes ? ", slopes" : "");
  p.softcap = softcap;
  if (slopes) p.slopes = slopes_of(p.hq);
  return p;
}

// Scores are of order one: a cap of 0.8 changes most of them, one of 50 hardly any.
std::vector<Problem> problems() {
  const Problem blocks{"two key blocks", 200, 200, 2, 1, 12, {{0, 200, 0, 200, 0, 0}}, true, 0, DType::f32, 6};
  const Problem documents{
      "documents", 70, 70, 4, 2, 10, {{0, 1, 0, 1, 0, 0}, {1, 45, 1, 45, 0, 0}, {47, 23, 47, 23, 40, 40}}};
  const Problem bf16{"bf16", 80, 80, 6, 2, 24, {{0, 30, 0, 30, 0, 0}, {30, 50, 30, 50, 0, 0}}, true, 0, DType::bf16, 8};
  const Problem rows{"one row each", 3, 300, 6, 2, 33, {{0, 1, 0, 7, 6, 0}, {2, 1, 10, 250, 249, 0}}};
  return {
      with(blocks, 0.8, false),
      with(blocks, 0, true),
      with(documents, 0.8, true),
      with({"window", 70, 70, 4, 2, 24, {{0, 70, 0, 70, 0, 0}}, true, 37}, 0.8, true),
      with({"queries before and after their keys", 60, 90, 3, 3, 12, {{0, 60, 0, 90, 15, 0}}, false}, 0, true),
      with({"window without causal", 60, 90, 3, 3, 12, {{0, 60, 0, 90, 40, 0}}, false, 25}, 50, true),
      with({"shared keys", 30, 110, 3, 1, 16, {{0, 10, 10, 70, 100, 7}, {10, 20, 30, 80, 130, 50}}, false}, 0.8, true),
      with(rows, 0.8, true),
      with(rows, 0, true),
      with(bf16, 0.8, false),
      with(bf16, 0, true),
  };
}

TEST(AttentionScores, ForwardAgreesWithFloat64) {
  for (const Problem& p : problems()) check_forward(p);
}

TEST(AttentionScores, BackwardAgreesWithFloat64) {
  for (const Problem& p : problems()) {
    check_backward(p, p.dtype, false);
    if (p.tq * p.hq < 250) check_backward(p, p.dtype, true);
  }
}

TEST(AttentionScores, ForwardMergesIntoEarlierResults) {
  for (const Problem& p : problems()) {
    if (p.tq < 80) check_accumulate(p, DType::f32, 4e-6);
  }
}

// Checks the reference itself against central differences of its forward.
TEST(AttentionScores, ReferenceAgreesWithFiniteDifferences) {
  const Problem p = with({"small", 7, 9, 4, 2, 3, {{0, 4, 0, 5, 1, 0}, {4, 3, 2, 7, 3, 0}}, true, 4}, 0.6, true);
  Tensors x(p);
  const Outputs analytic = reference(p, x);
  const auto loss = [&] { return dot(reference(p, x).o, x.d_o); };
  expect_close(analytic.dq, numeric_gradient(loss, x.q), 1e-7, "dq");
  expect_close(analytic.dk, numeric_gradient(loss, x.k), 1e-7, "dk");
  expect_close(analytic.dv, numeric_gradient(loss, x.v), 1e-7, "dv");
}

// transformers' eager attention of Gemma 2, then of BLOOM: the bias is slope * r for key position r.
TEST(AttentionScores, EqualsTransformersForms) {
  for (const bool bloom : {false, true}) {
    Problem p{"one document", 40, 40, 3, 1, 8, {{0, 40, 0, 40, 0, 0}}};
    p = with(p, bloom ? 0 : 0.7, bloom);
    const Tensors x(p);
    const AttentionSpace space = p.space();
    Outputs expected{Values(x.q.size()), Values(static_cast<std::size_t>(p.hq * p.tq)), {}, {}, {}};
    for (std::int64_t t = 0; t < p.tq; ++t) {
      for (std::int64_t h = 0; h < p.hq; ++h) {
        const double slope = bloom ? p.slopes[static_cast<std::size_t>(h)] : 0;
        Values weights;
        double sum = 0;
        for (std::int64_t r = 0; r <= t; ++r) {
          double score = 0;
          for (std::int64_t d = 0; d < p.d; ++d) {
            score += x.q[space.query_at(t, h) + static_cast<std::size_t>(d)] *
                     x.k[space.key_at(r, h) + static_cast<std::size_t>(d)];
          }
          score *= p.scale();
          if (!bloom) score = std::tanh(score / p.softcap) * p.softcap;
          weights.push_back(std::exp(score + slope * static_cast<double>(r)));
          sum += weights.back();
        }
        for (std::int64_t r = 0; r <= t; ++r) {
          for (std::int64_t d = 0; d < p.d; ++d) {
            expected.o[space.query_at(t, h) + static_cast<std::size_t>(d)] +=
                weights[static_cast<std::size_t>(r)] / sum * x.v[space.key_at(r, h) + static_cast<std::size_t>(d)];
          }
        }
        expected.lse[static_cast<std::size_t>(h * p.tq + t)] = std::log(sum) - slope * static_cast<double>(t);
      }
    }
    World world(DeviceKind::cpu, 2);
    const AttentionCall args = forward_args(world, p, x);
    attention_forward(world.stream(), args);
    expect_close(world.values(args.o), expected.o, 4e-6, "o");
    expect_close(world.values(args.lse), expected.lse, 4e-6, "lse");
  }
}

TEST(AttentionScores, CapHasFloat32Accuracy) {
  // One key whose value is 1: lse is the score.
  for (const double score : {1e-6, 0.01, 1.0, 20.0, 31.2, 31.3, 60.0, -45.0, 400.0, 1e4, -1e4}) {
    World world(DeviceKind::cpu, 1);
    AttentionCall args{.q = world.in(DType::f32, {2, 1, 1}, {score, 0}),
                       .k = world.in(DType::f32, {2, 1, 1}, {1, 1}),
                       .v = world.in(DType::f32, {2, 1, 1}, {1, 1}),
                       .segments = world.in(DType::i32, {1, 6}, {0, 2, 0, 1, 0, 0}),
                       .segment_count = world.in(DType::i32, {1}, {1}),
                       .causal = false,
                       .softcap = 50,
                       .o = world.out(DType::f32, {2, 1, 1}),
                       .lse = world.out(DType::f32, {1, 2})};
    args.workspace = world.workspace(attention_workspace(args, DeviceKind::cpu));
    attention_forward(world.stream(), args);
    const double expected = 50 * std::tanh(static_cast<double>(static_cast<float>(score)) / 50);
    EXPECT_NEAR(world.values(args.lse)[0], expected, 4e-7 * std::abs(expected)) << score;
  }
}

TEST(AttentionScores, CudnnIsNotUsed) {
  Problem p{"one document", 128, 128, 2, 1, 64, {{0, 128, 0, 128, 0, 0}}, true, 0, DType::bf16};
  p.form = SegmentForm::diagonal;
  p.uniform = 128;
  const auto kernels = [](const Problem& problem) {
    World world(DeviceKind::cpu, 1);
    const Tensors x(problem);
    const AttentionBackward args =
        backward_args(world, problem, x, reference(problem, x), {.gradient = DType::bf16, .o = DType::bf16});
    return std::pair(attention_implementation(args.call, DeviceKind::cuda),
                     attention_implementation(args, DeviceKind::cuda));
  };
  const auto [forward, backward] = kernels(p);
  EXPECT_EQ(forward.kernel, AttentionImplementation::cudnn_dense);
  EXPECT_EQ(backward.kernel, AttentionImplementation::cudnn_dense);
  for (const auto& [problem, reason] : {std::pair(with(p, 50, false), "soft-capped scores"),
                                        std::pair(with(p, 0, true), "scores with a bias by distance")}) {
    const auto [own_forward, own_backward] = kernels(problem);
    for (const AttentionImplementation& how : {own_forward, own_backward}) {
      EXPECT_EQ(how.kernel, AttentionImplementation::tiled);
      EXPECT_EQ(how.reason, reason);
    }
  }
}

TEST(AttentionScores, RejectsBadArguments) {
  const Problem p = with({"one document", 8, 8, 4, 2, 8, {{0, 8, 0, 8, 0, 0}}}, 1, true);
  const Tensors x(p);
  World world(DeviceKind::cpu, 1);
  const AttentionCall good = forward_args(world, p, x);
  AttentionCall bad = good;
  bad.softcap = -1;
  expect_rejected([&] { attention_forward(world.stream(), bad); }, "softcap -1");
  bad.softcap = std::numeric_limits<double>::infinity();
  expect_rejected([&] { attention_forward(world.stream(), bad); }, "softcap inf");
  bad = good;
  bad.slopes = world.in(DType::f32, {2}, {1, 1});
  expect_rejected([&] { attention_forward(world.stream(), bad); }, "slopes");
  bad.slopes = world.in(DType::bf16, {4}, {1, 1, 1, 1});
  expect_rejected([&] { attention_forward(world.stream(), bad); }, "slopes");
  bad.slopes = good.lse.reshape({32}).rows(0, 4);
  expect_rejected([&] { attention_forward(world.stream(), bad); }, "share memory");
  attention_forward(world.stream(), good);
  world.stream().synchronize();
}

// Those of transformers 5.x' build_alibi_tensor.
TEST(AlibiSlopes, EqualTransformers) {
  const auto expect = [](std::int64_t heads, const Values& exponents) {
    const Values got = slopes_of(heads);
    ASSERT_EQ(got.size(), exponents.size()) << heads;
    for (std::size_t h = 0; h < got.size(); ++h) EXPECT_NEAR(got[h], std::exp2(exponents[h]), 1e-7 * got[h]) << h;
  };
  expect(1, {-8});
  expect(8, {-1, -2, -3, -4, -5, -6, -7, -8});
  expect(3, {-4, -8, -2});
  expect(12, {-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5});
  expect(16, {-0.5, -1, -1.5, -2, -2.5, -3, -3.5, -4, -4.5, -5, -5.5, -6, -6.5, -7, -7.5, -8});
  expect_rejected([] { alibi_slopes(0); }, "0 heads");
}

}  // namespace attention_scores_cases
}  // namespace hawser::ops
