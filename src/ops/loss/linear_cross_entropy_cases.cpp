#include "ops/loss/linear_cross_entropy.h"

#include <limits>

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace linear_cross_entropy_cases {

using namespace testing;

struct LossCase {
  DType act = DType::f32, out = DType::f32;
  std::int64_t tokens, channels, vocabulary, chunk_rows = 0;
  bool want_dx = true, want_dweight = true, accumulate = false;
  bool bias = false, want_dbias = true;  // want_dbias: with a bias
  double softcap = 0;
};

// bias: may be empty; softcap: may be 0.
double loss_of(const Values& x, const Values& weight, const Values& bias, double softcap, const Values& labels,
               std::int64_t channels) {
  const std::size_t vocabulary = weight.size() / static_cast<std::size_t>(channels);
  double total = 0;
  for (std::size_t t = 0; t < labels.size(); ++t) {
    if (labels[t] < 0) continue;
    double sum = 0, target = 0;
    for (std::size_t v = 0; v < vocabulary; ++v) {
      double logit = bias.empty() ? 0 : bias[v];
      for (std::int64_t c = 0; c < channels; ++c) logit += x[t * channels + c] * weight[v * channels + c];
      if (softcap > 0) logit = softcap * std::tanh(logit / softcap);
      sum += std::exp(logit);
      if (static_cast<double>(v) == labels[t]) target = logit;
    }
    total += std::log(sum) - target;
  }
  return total;
}

// Of the high and the low part; none on the meta device.
Values total_of(const Values& parts) {
  return parts.empty() ? Values() : Values{parts[0] + parts[1]};
}

void run_loss(World& world, LinearCrossEntropy call) {
  call.workspace = world.workspace(linear_cross_entropy_workspace(call, world.stream().target()));
  linear_cross_entropy(world.stream(), call);
}

void check_loss(const LossCase& l) {
  constexpr double kScale = 0.125, kBefore = 2.5;
  Values x = random_values(l.tokens * l.channels, 1, l.act),
         weight = random_values(l.vocabulary * l.channels, 2, l.act, 0.7),
         bias = l.bias ? random_values(l.vocabulary, 5, l.act) : Values();
  const auto old = random_values(l.vocabulary * l.channels, 3, l.out), old_bias = random_values(l.vocabulary, 6, l.out);
  const bool want_dbias = l.bias && l.want_dbias;
  const RandomStream random(4, "labels");
  Values labels;
  for (std::int64_t t = 0; t < l.tokens; ++t) {
    labels.push_back(t % 5 == 3 ? -100.0 : static_cast<double>(random.below(l.vocabulary, t)));
  }
  const auto loss = [&] { return kScale * loss_of(x, weight, bias, l.softcap, labels, l.channels); };
  std::vector<Values> expected{{kBefore + loss() / kScale}};
  if (l.want_dx) expected.push_back(numeric_gradient(loss, x));
  if (l.want_dweight) {
    const Values dweight = numeric_gradient(loss, weight);
    expected.push_back(l.accumulate ? plus(dweight, old) : dweight);
  }
  if (want_dbias) {
    const Values dbias = numeric_gradient(loss, bias);
    expected.push_back(l.accumulate ? plus(dbias, old_bias) : dbias);
  }
  check_case({cat("linear_cross_entropy ", to_string(l.act), "->", to_string(l.out), " ", l.tokens, "x", l.channels,
                  "x", l.vocabulary, " chunks of ", l.chunk_rows, l.bias ? ", bias" : "", ", softcap ", l.softcap),
              [&](World& world) -> std::vector<Values> {
                const Shape w_shape{l.vocabulary, l.channels};
                LinearCrossEntropy args{.x = world.in(l.act, {l.tokens, l.channels}, x),
                                        .weight = world.in(l.act, w_shape, weight),
                                        .labels = world.in(DType::i32, {l.tokens}, labels),
                                        .loss_sum = world.in_out(DType::f32, {2}, {kBefore, 0}),
                                        .accumulate_weight = l.accumulate,
                                        .accumulate_bias = l.accumulate && want_dbias,
                                        .softcap = l.softcap,
                                        .chunk_rows = l.chunk_rows};
                if (l.bias) args.bias = world.in(l.act, {l.vocabulary}, bias);
                if (l.want_dx || l.want_dweight || want_dbias) args.scale = world.in(DType::f32, {1}, {kScale});
                if (l.want_dx) args.dx = world.out(l.out, {l.tokens, l.channels});
                if (l.want_dweight)
                  args.dweight = l.accumulate ? world.in_out(l.out, w_shape, old) : world.out(l.out, w_shape);
                if (want_dbias) {
                  const Shape b_shape{l.vocabulary};
                  args.dbias = l.accumulate ? world.in_out(l.out, b_shape, old_bias) : world.out(l.out, b_shape);
                }
                args.workspace = world.workspace(linear_cross_entropy_workspace(args, world.stream().target()));
                linear_cross_entropy(world.stream(), args);
                std::vector<Values> got{total_of(world.values(args.loss_sum))};
                if (l.want_dx) got.push_back(world.values(args.dx));
                if (l.want_dweight) got.push_back(world.values(args.dweight));
                if (want_dbias) got.push_back(world.values(args.dbias));
                return got;
              },
              expected, l.act == DType::bf16 ? kBf16Tolerance : 5e-6});
}

TEST(LinearCrossEntropy, AgreesWithFiniteDifferences) {
  for (const DType act : {DType::f32, DType::bf16}) {
    check_loss({.act = act, .tokens = 13, .channels = 10, .vocabulary = 37});
    check_loss({.act = act, .tokens = 13, .channels = 10, .vocabulary = 37, .chunk_rows = 4, .accumulate = true});
    check_loss({.act = act, .tokens = 8, .channels = 16, .vocabulary = 48, .chunk_rows = 4, .want_dx = false});
    check_loss({.act = act, .tokens = 5, .channels = 8, .vocabulary = 1000, .accumulate = true});
    check_loss({.act = act, .tokens = 9, .channels = 7, .vocabulary = 21, .chunk_rows = 100, .want_dweight = false});
    check_loss({.act = act,
                .tokens = 9,
                .channels = 7,
                .vocabulary = 21,
                .chunk_rows = 2,
                .want_dx = false,
                .want_dweight = false});
    check_loss(
        {.act = act, .out = act, .tokens = 5, .channels = 6, .vocabulary = 9, .chunk_rows = 3, .accumulate = true});
  }
}

// A bias, a cap that most logits are near to, and both.
TEST(LinearCrossEntropy, BiasAndSoftcapAgreeWithFiniteDifferences) {
  for (const DType act : {DType::f32, DType::bf16}) {
    for (const auto& [bias, softcap] : {std::pair{true, 0.0}, {false, 1.5}, {true, 1.5}}) {
      const LossCase all{.act = act, .tokens = 7, .channels = 5, .vocabulary = 37, .bias = bias, .softcap = softcap};
      if (!bias) check_loss(all);
      LossCase chunks = all;
      chunks.chunk_rows = 3;
      chunks.accumulate = true;
      check_loss(chunks);
      if (!bias || softcap == 0) continue;
      chunks.out = act;
      check_loss(chunks);
      LossCase frozen = chunks;  // the bias trains without the weight, and the weight without the bias
      frozen.want_dx = frozen.want_dweight = false;
      check_loss(frozen);
      frozen.want_dweight = true;
      frozen.want_dbias = false;
      check_loss(frozen);
      LossCase forward = all;
      forward.want_dx = forward.want_dweight = forward.want_dbias = false;
      check_loss(forward);
    }
  }
}

// A row is longer than what one block of a GPU holds: each block has its part of the bias.
TEST(LinearCrossEntropy, BiasAndSoftcapOfALargeVocabulary) {
  constexpr std::int64_t kTokens = 3, kVocabulary = 40'001;
  constexpr double kScale = 4096, kSoftcap = 3;
  for (const DType act : {DType::f32, DType::bf16}) {
    const Values x = random_values(kTokens, 1, act), weight = random_values(kVocabulary, 2, act),
                 bias = random_values(kVocabulary, 3, act), labels{39'998, -1, 20'003};
    Values dbias(static_cast<std::size_t>(kVocabulary)), dx(static_cast<std::size_t>(kTokens));
    for (std::size_t t = 0; t < static_cast<std::size_t>(kTokens); ++t) {
      if (labels[t] < 0) continue;
      Values z;
      double sum = 0;
      for (std::size_t v = 0; v < bias.size(); ++v) {
        z.push_back(kSoftcap * std::tanh((x[t] * weight[v] + bias[v]) / kSoftcap));
        sum += std::exp(z[v]);
      }
      for (std::size_t v = 0; v < bias.size(); ++v) {
        const double p = std::exp(z[v]) / sum - (static_cast<double>(v) == labels[t] ? 1 : 0);
        const double g = kScale * p * (1 - z[v] * z[v] / (kSoftcap * kSoftcap));
        dbias[v] += g;
        dx[t] += g * weight[v];
      }
    }
    check_case({cat("linear_cross_entropy of ", kVocabulary, " columns, bias and softcap, ", to_string(act)),
                [&](World& world) -> std::vector<Values> {
                  LinearCrossEntropy args{.x = world.in(act, {kTokens, 1}, x),
                                          .weight = world.in(act, {kVocabulary, 1}, weight),
                                          .bias = world.in(act, {kVocabulary}, bias),
                                          .labels = world.in(DType::i32, {kTokens}, labels),
                                          .scale = world.in(DType::f32, {1}, {kScale}),
                                          .loss_sum = world.in_out(DType::f32, {2}, {0, 0}),
                                          .dx = world.out(DType::f32, {kTokens, 1}),
                                          .dbias = world.out(DType::f32, {kVocabulary}),
                                          .softcap = kSoftcap};
                  run_loss(world, args);
                  return {total_of(world.values(args.loss_sum)), world.values(args.dx), world.values(args.dbias)};
                },
                {{loss_of(x, weight, bias, kSoftcap, labels, 1)}, dx, dbias},
                act == DType::bf16 ? kBf16Tolerance : 5e-6});
  }
}

// A batch without rows: the gradient is zero, or what it was before.
TEST(LinearCrossEntropy, AnEmptyBatchWritesTheGradientOfTheBias) {
  for (const DeviceKind kind : devices()) {
    for (const bool accumulate : {false, true}) {
      World world(kind, 1);
      const TensorView dbias = world.in_out(DType::f32, {3}, {1, 2, 3});
      run_loss(world, {.x = world.in(DType::f32, {1, 2}, {0, 0}).rows(0, 0),
                       .weight = world.in(DType::f32, {3, 2}, Values(6)),
                       .bias = world.in(DType::f32, {3}, Values(3)),
                       .labels = world.in(DType::i32, {1}, {0}).rows(0, 0),
                       .scale = world.in(DType::f32, {1}, {1}),
                       .loss_sum = world.in_out(DType::f32, {2}, {0, 0}),
                       .dbias = dbias,
                       .accumulate_bias = accumulate});
      EXPECT_EQ(world.values(dbias), accumulate ? (Values{1, 2, 3}) : Values(3));
    }
  }
}

// Logits of several thousand: the softmax must not overflow, and the loss must be exact.
TEST(LinearCrossEntropy, SupportsHugeLogits) {
  for (const DeviceKind kind : devices()) {
    World world(kind, 1);
    const TensorView loss = world.in_out(DType::f32, {2}, {0, 0}), dx = world.out(DType::f32, {1, 1});
    run_loss(world, {.x = world.in(DType::f32, {1, 1}, {1}),
                     .weight = world.in(DType::f32, {3, 1}, {-5000, 3000, 2000}),
                     .labels = world.in(DType::i32, {1}, {2}),
                     .scale = world.in(DType::f32, {1}, {1}),
                     .loss_sum = loss,
                     .dx = dx});
    EXPECT_EQ(world.values(loss), (Values{1000, 0}));
    EXPECT_EQ(world.values(dx), Values{1000});
  }
}

// The logits of rows without a label overflow to infinities and to NaN: the loss and all gradients are those without
// these rows, which have none.
TEST(LinearCrossEntropy, RowsWithoutALabelMayOverflow) {
  constexpr std::int64_t kChannels = 2, kVocabulary = 3;
  constexpr double kHuge = 3e38;
  const Values weight{4, -2, 1, 3, -1, 2}, bias{0.5, -1, 0.25};
  const auto results = [&](const Values& x, const Values& labels, double softcap, DType act) {
    return [&, x, labels, softcap, act](World& world) -> std::vector<Values> {
      const auto rows = static_cast<std::int64_t>(labels.size());
      LinearCrossEntropy args{.x = world.in(act, {rows, kChannels}, x),
                              .weight = world.in(act, {kVocabulary, kChannels}, weight),
                              .bias = world.in(act, {kVocabulary}, bias),
                              .labels = world.in(DType::i32, {rows}, labels),
                              .scale = world.in(DType::f32, {1}, {1}),
                              .loss_sum = world.in_out(DType::f32, {2}, {0, 0}),
                              .dx = world.out(DType::f32, {rows, kChannels}),
                              .dweight = world.out(DType::f32, {kVocabulary, kChannels}),
                              .dbias = world.out(DType::f32, {kVocabulary}),
                              .softcap = softcap};
      run_loss(world, args);
      return {total_of(world.values(args.loss_sum)), world.values(args.dx), world.values(args.dweight),
              world.values(args.dbias)};
    };
  };
  for (const DType act : {DType::f32, DType::bf16}) {
    for (const double softcap : {0.0, 2.0}) {
      World world(DeviceKind::cpu, 1);
      std::vector<Values> expected = results({1, 0.5, -0.25, 2}, {2, 0}, softcap, act)(world);
      Values& dx = expected[1];
      dx = {dx[0], dx[1], 0, 0, 0, 0, dx[2], dx[3]};
      check_case({cat("linear_cross_entropy of rows that overflow, softcap ", softcap, ", ", to_string(act)),
                  results({1, 0.5, kHuge, -kHuge, kHuge, kHuge, -0.25, 2}, {2, -100, -1, 0}, softcap, act), expected,
                  act == DType::bf16 ? kBf16Tolerance : 5e-6});
    }
  }
}

// The micro-batches of a long step: a float32 sum would be off by 1e-4 of itself.
TEST(LinearCrossEntropy, ManyLossesAreSummedExactly) {
  constexpr int kCalls = 20'000;
  for (const DeviceKind kind : devices()) {
    World world(kind, 1);
    LinearCrossEntropy call{.x = world.in(DType::f32, {1, 1}, {1}),
                            .weight = world.in(DType::f32, {3, 1}, {0.25, 0.5, 1}),
                            .labels = world.in(DType::i32, {1}, {0}),
                            .loss_sum = world.in_out(DType::f32, {2}, {0, 0})};
    call.workspace = world.workspace(linear_cross_entropy_workspace(call, kind));
    linear_cross_entropy(world.stream(), call);
    const Values one = world.values(call.loss_sum);
    for (int i = 1; i < kCalls; ++i) linear_cross_entropy(world.stream(), call);
    const Values all = world.values(call.loss_sum);
    EXPECT_NEAR((all[0] + all[1]) / kCalls, one[0] + one[1], 1e-10);
  }
}

TEST(LinearCrossEntropy, DxMayAliasX) {
  const auto x = random_values(12, 1), weight = random_values(28, 2);
  const Values labels{6, 0, -1};
  for (const DeviceKind kind : devices()) {
    std::vector<Values> got;
    for (const bool over : {false, true}) {
      World world(kind, 2);
      const TensorView x_view = world.in_out(DType::f32, {3, 4}, x);
      const TensorView dx = over ? x_view : world.out(DType::f32, {3, 4}), dweight = world.out(DType::f32, {7, 4});
      run_loss(world, {.x = x_view,
                       .weight = world.in(DType::f32, {7, 4}, weight),
                       .labels = world.in(DType::i32, {3}, labels),
                       .scale = world.in(DType::f32, {1}, {1}),
                       .loss_sum = world.in_out(DType::f32, {2}, {0, 0}),
                       .dx = dx,
                       .dweight = dweight,
                       .chunk_rows = 2});
      got.push_back(world.values(dx));
      got.push_back(world.values(dweight));
    }
    EXPECT_EQ(got[0], got[2]);
    EXPECT_EQ(got[1], got[3]);
  }
}

// A bf16 gradient of many chunks is a float32 sum, rounded once: also in the last of a thousand chunks, a bf16 sum
// would lose most of each chunk's part.
TEST(LinearCrossEntropy, ABf16GradientIsSummedInFloat32) {
  constexpr std::int64_t kTokens = 1000, kChannels = 8, kVocabulary = 16;
  const Values x = random_values(kTokens * kChannels, 1, DType::bf16),
               weight = random_values(kVocabulary * kChannels, 2, DType::bf16),
               bias = random_values(kVocabulary, 4, DType::bf16),
               before = random_values(kVocabulary * kChannels, 3, DType::bf16);
  for (const DeviceKind kind : devices()) {
    for (const bool accumulate : {false, true}) {
      const auto gradient = [&](DType dtype) {
        World world(kind, 2);
        const Shape shape{kVocabulary, kChannels};
        // The float32 sum starts at zero, and the gradient before is added to it.
        const bool add = accumulate && dtype == DType::bf16;
        const TensorView dweight = add ? world.in_out(dtype, shape, before) : world.out(dtype, shape);
        const Values first(before.begin(), before.begin() + kVocabulary);
        const TensorView dbias = add ? world.in_out(dtype, {kVocabulary}, first) : world.out(dtype, {kVocabulary});
        run_loss(world, {.x = world.in(DType::bf16, {kTokens, kChannels}, x),
                         .weight = world.in(DType::bf16, shape, weight),
                         .bias = world.in(DType::bf16, {kVocabulary}, bias),
                         .labels = world.in(DType::i32, {kTokens}, Values(kTokens, 3)),
                         .scale = world.in(DType::f32, {1}, {1}),
                         .loss_sum = world.in_out(DType::f32, {2}, {0, 0}),
                         .dweight = dweight,
                         .dbias = dbias,
                         .accumulate_weight = add,
                         .accumulate_bias = add,
                         .chunk_rows = 1});
        return std::vector{world.values(dweight), world.values(dbias)};
      };
      std::vector<Values> expected = gradient(DType::f32);
      for (Values& values : expected) {
        for (std::size_t i = 0; i < values.size(); ++i) {
          const auto sum = static_cast<float>(values[i]) + static_cast<float>(accumulate ? before[i] : 0.0);
          values[i] = static_cast<float>(Bf16(sum));
        }
      }
      EXPECT_EQ(gradient(DType::bf16), expected) << to_string(kind) << (accumulate ? ", added" : "");
    }
  }
}

// Sizes alone, of bf16 tensors without data.
LinearCrossEntropy sized(std::int64_t tokens, std::int64_t vocabulary, DType dweight) {
  const auto view = [](DType dtype, const Shape& shape) {
    return TensorView(reinterpret_cast<std::byte*>(1 << 20), dtype, shape, DeviceKind::meta);
  };
  return {.x = view(DType::bf16, {tokens, 4096}),
          .weight = view(DType::bf16, {vocabulary, 4096}),
          .dweight = view(dweight, {vocabulary, 4096})};
}

TEST(LinearCrossEntropy, ChunksAreEvenAndBounded) {
  const auto rows = [](std::int64_t tokens, std::int64_t vocabulary) {
    return loss_chunks(sized(tokens, vocabulary, DType::f32), DeviceKind::cpu).rows;
  };
  EXPECT_EQ(rows(10, 100), 10);
  EXPECT_EQ(rows(4096, 49152), 1024);
  EXPECT_LE(rows(1 << 20, 128256) * 4 * 128256, 256 << 20);
  EXPECT_EQ(rows(1000, 100'000'000), 32);
  EXPECT_EQ(rows(0, 100), 1);
}

// The head of an 8B model: the float32 sum of 2004 MiB costs less than 1 GiB, since chunks are half as large.
TEST(LinearCrossEntropy, TheFloat32SumCostsLessThanAGibibyte) {
  for (const std::int64_t tokens : {std::int64_t{8192}, std::int64_t{16384}, std::int64_t{1} << 20}) {
    const auto bytes = [&](DType dweight) {
      return linear_cross_entropy_workspace(sized(tokens, 128256, dweight), DeviceKind::cuda);
    };
    EXPECT_TRUE(loss_chunks(sized(tokens, 128256, DType::bf16), DeviceKind::cuda).sums_dweight);
    EXPECT_LE(bytes(DType::bf16) - bytes(DType::f32), std::int64_t{1} << 30) << tokens;
  }
  EXPECT_FALSE(loss_chunks(sized(4096, 128256, DType::bf16), DeviceKind::cuda).sums_dweight);
}

TEST(LinearCrossEntropy, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  LinearCrossEntropy good{.x = world.in(DType::f32, {2, 3}, Values(6)),
                          .weight = world.in(DType::f32, {5, 3}, Values(15)),
                          .labels = world.in(DType::i32, {2}, Values(2)),
                          .scale = world.in(DType::f32, {1}, {1}),
                          .loss_sum = world.in_out(DType::f32, {2}, {0, 0}),
                          .dx = world.out(DType::f32, {2, 3})};
  good.workspace = world.workspace(linear_cross_entropy_workspace(good, DeviceKind::cpu));
  const auto rejected = [&](const std::function<void(LinearCrossEntropy&)>& spoil, const std::string& part) {
    LinearCrossEntropy args = good;
    spoil(args);
    expect_rejected([&] { linear_cross_entropy(world.stream(), args); }, part);
  };
  rejected([&](auto& a) { a.scale = TensorView(); }, "scale is missing");
  rejected([&](auto& a) { a.labels = a.labels.rows(0, 1); }, "labels has shape");
  rejected([&](auto& a) { a.weight = world.in(DType::bf16, {5, 3}, Values(15)); }, "weight is bfloat16");
  rejected([&](auto& a) { a.dx = world.out(DType::bf16, {2, 3}); }, "dx is bfloat16");
  rejected([&](auto& a) { a.dweight = a.weight; }, "share memory");
  rejected([&](auto& a) { a.bias = world.in(DType::f32, {4}, Values(4)); }, "bias has shape");
  rejected([&](auto& a) { a.bias = world.in(DType::bf16, {5}, Values(5)); }, "bias is bfloat16");
  rejected([&](auto& a) { a.dbias = world.out(DType::f32, {5}); }, "dbias without a bias");
  rejected([&](auto& a) { a.bias = a.dbias = world.in(DType::f32, {5}, Values(5)); }, "share memory");
  rejected([&](auto& a) { a.softcap = -1; }, "softcap is -1");
  rejected([&](auto& a) { a.softcap = std::numeric_limits<double>::infinity(); }, "softcap is inf");
  rejected([&](auto& a) { a.softcap = std::numeric_limits<double>::quiet_NaN(); }, "softcap is nan");
  rejected([&](auto& a) { a.workspace = TensorView(); }, "workspace is missing");
}

TEST(LinearCrossEntropy, ALabelOutsideTheVocabularyThrowsOnTheStream) {
  for (const DeviceKind kind : devices()) {
    World world(kind, 1);
    run_loss(world, {.x = world.in(DType::f32, {2, 3}, Values(6)),
                     .weight = world.in(DType::f32, {5, 3}, Values(15)),
                     .labels = world.in(DType::i32, {2}, {0, 5}),
                     .scale = world.in(DType::f32, {1}, {1}),
                     .loss_sum = world.in_out(DType::f32, {2}, {0, 0}),
                     .dx = world.out(DType::f32, {2, 3})});
    EXPECT_THROW(world.stream().synchronize(), InternalError);
  }
}

}  // namespace linear_cross_entropy_cases
}  // namespace hawser::ops
