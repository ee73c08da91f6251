#include "ops/rope/rope.h"

#include <numbers>
#include <tuple>

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace rope_cases {

using namespace testing;

Values rotated(const Values& x, const Values& positions, const Values& frequencies, std::int64_t heads, double scale,
               bool inverse, bool interleaved = false) {
  const auto half = static_cast<std::int64_t>(frequencies.size());
  Values out = x;
  for (std::size_t t = 0; t < positions.size(); ++t) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t i = 0; i < half; ++i) {
        const double angle = positions[t] * frequencies[static_cast<std::size_t>(i)] * (inverse ? -1 : 1);
        const std::int64_t head = (static_cast<std::int64_t>(t) * heads + h) * 2 * half;
        const auto a = static_cast<std::size_t>(head + (interleaved ? 2 * i : i));
        const auto b = a + static_cast<std::size_t>(interleaved ? 1 : half);
        out[a] = scale * (x[a] * std::cos(angle) - x[b] * std::sin(angle));
        out[b] = scale * (x[b] * std::cos(angle) + x[a] * std::sin(angle));
      }
    }
  }
  return out;
}

// Positions up to and beyond 2^20: the angle must not be rounded to float32 before it is reduced.
TEST(Rope, AgreesWithFloat64AtLargePositions) {
  const Values positions{0, 1, 2, 1000, 131071, 1048575, 1048576, 4000003, 16777215};
  const auto tokens = static_cast<std::int64_t>(positions.size());
  for (const DType act : {DType::f32, DType::bf16}) {
    for (const std::int64_t head_dim : {2, 10, 64, 128}) {
      for (const auto& [inverse, interleaved] : {std::pair{false, false}, {true, false}, {false, true}, {true, true}}) {
        const std::int64_t heads = 3;
        Values frequencies;
        for (const float f : rope_frequencies({.theta = 10000, .head_dim = head_dim})) frequencies.push_back(f);
        const double scale = inverse ? 1.0 : 1.25;
        const auto x = random_values(tokens * heads * head_dim, 1, act);
        check_case({cat("rope ", to_string(act), " ", head_dim, " ", inverse, " ", interleaved),
                    [&, inverse = inverse, interleaved = interleaved](World& world) -> std::vector<Values> {
                      const Rope args{.x = world.in_out(act, {tokens, heads, head_dim}, x, 6),
                                      .positions = world.in(DType::i32, {tokens}, positions),
                                      .frequencies = world.in(DType::f32, {head_dim / 2}, frequencies),
                                      .scale = scale,
                                      .inverse = inverse,
                                      .interleaved = interleaved};
                      rope(world.stream(), args);
                      return {world.values(args.x)};
                    },
                    {rotated(x, positions, frequencies, heads, scale, inverse, interleaved)},
                    act == DType::bf16 ? kBf16Tolerance : 5e-7});
      }
    }
  }
}

// With frequencies for a part of the dims, the others stay as they are: 4 of 10, and 16 of 64, which a GPU loads as
// vectors.
TEST(Rope, RotatesAPartOfAHead) {
  for (const auto& [act, rotated_dims, head_dim, interleaved] :
       {std::tuple{DType::f32, 4, 10, false}, std::tuple{DType::f32, 16, 64, false},
        std::tuple{DType::bf16, 16, 64, false}, std::tuple{DType::f32, 4, 10, true},
        std::tuple{DType::f32, 16, 64, true}, std::tuple{DType::bf16, 16, 64, true}}) {
    const Values positions{3, 77};
    Values frequencies;
    for (int i = 0; i < rotated_dims / 2; ++i) frequencies.push_back(std::pow(0.25, i));
    const Values x = random_values(2 * 3 * head_dim, 1, act);
    Values expected = x;
    for (int head = 0; head < 6; ++head) {
      const auto begin = x.begin() + head_dim * head;
      const Values own = rotated(Values(begin, begin + rotated_dims), {positions[static_cast<std::size_t>(head / 3)]},
                                 frequencies, 1, 1.0, false, interleaved);
      std::copy(own.begin(), own.end(), expected.begin() + head_dim * head);
    }
    check_case({cat("partial rope ", to_string(act), " ", head_dim, " ", interleaved),
                [&, act = act, head_dim = head_dim, interleaved = interleaved](World& world) -> std::vector<Values> {
                  const Rope args{
                      .x = world.in_out(act, {2, 3, head_dim}, x, 8),
                      .positions = world.in(DType::i32, {2}, positions),
                      .frequencies = world.in(DType::f32, {static_cast<std::int64_t>(frequencies.size())}, frequencies),
                      .interleaved = interleaved};
                  rope(world.stream(), args);
                  return {world.values(args.x)};
                },
                {expected},
                act == DType::bf16 ? kBf16Tolerance : 5e-7});
  }
}

// The gradient of <y, dy> with respect to x is the inverse rotation of dy.
TEST(Rope, InverseIsTheBackwardPass) {
  const Values positions{3, 77}, frequencies{1.0, 0.3, 0.01};
  Values x = random_values(2 * 2 * 6, 1);
  const Values dy = random_values(2 * 2 * 6, 2);
  for (const bool interleaved : {false, true}) {
    const auto loss = [&] { return dot(rotated(x, positions, frequencies, 2, 1.1, false, interleaved), dy); };
    expect_close(rotated(dy, positions, frequencies, 2, 1.1, true, interleaved), numeric_gradient(loss, x), 1e-7, "dx");
  }
}

// Values of transformers' ROPE_INIT_FUNCTIONS, computed from its formulas.
TEST(Rope, FrequenciesOfEachKind) {
  const auto plain = rope_frequencies({.theta = 500000, .head_dim = 128});
  ASSERT_EQ(plain.size(), 64u);
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_NEAR(plain[i] / std::pow(500000.0, -2.0 * static_cast<double>(i) / 128.0), 1.0, 2e-7);
  }
  const auto linear = rope_frequencies({.kind = RopeKind::linear, .theta = 500000, .head_dim = 128, .factor = 4});
  for (std::size_t i = 0; i < 64; ++i) EXPECT_FLOAT_EQ(linear[i], plain[i] / 4);
  const auto llama3 = rope_frequencies({.kind = RopeKind::llama3,
                                        .theta = 500000,
                                        .head_dim = 128,
                                        .factor = 8,
                                        .low_freq_factor = 1,
                                        .high_freq_factor = 4,
                                        .original_max_position = 8192});
  int same = 0, divided = 0, between = 0;
  for (std::size_t i = 0; i < 64; ++i) {
    const double wavelength = 2 * std::numbers::pi / plain[i];
    if (wavelength < 2048) {
      EXPECT_EQ(llama3[i], plain[i]);
      ++same;
    } else if (wavelength > 8192) {
      EXPECT_FLOAT_EQ(llama3[i], plain[i] / 8);
      ++divided;
    } else {
      const double s = (8192 / wavelength - 1) / 3;
      EXPECT_NEAR(llama3[i] / ((1 - s) * plain[i] / 8 + s * plain[i]), 1.0, 2e-7);
      ++between;
    }
  }
  EXPECT_EQ(same, 29);
  EXPECT_EQ(between, 6);
  EXPECT_EQ(divided, 29);
}

// Values of transformers 5.23 ROPE_INIT_FUNCTIONS["yarn"]: every frequency, or of 64 every eighth.
TEST(Rope, YarnFrequenciesAndAttentionFactor) {
  struct YarnCase {
    RopeConfig config;
    std::vector<double> frequencies;
    double attention_factor = 0;
  };
  const std::vector<YarnCase> cases = {
      {{.theta = 1e4, .head_dim = 16, .factor = 4, .original_max_position = 128},
       {1, 0.237170815, 0.049999997, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05},
       1.1386294361119891},
      {{.theta = 1e4,
        .head_dim = 16,
        .factor = 4,
        .original_max_position = 128,
        .beta_fast = 16,
        .beta_slow = 2,
        .truncate = false,
        .attention_factor = 1.3},
       {1, 0.212468684, 0.0256643984, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05},
       1.3},
      {{.theta = 5e5,
        .head_dim = 16,
        .factor = 40,
        .original_max_position = 4096,
        .mscale = 1.0,
        .mscale_all_dim = 0.8},
       {1, 0.193922758, 0.0253840704, 0.00255243247, 3.53553369e-05, 6.85620444e-06, 1.32957393e-06, 2.57834614e-07},
       1.0569662567531275},
      {{.theta = 1e6, .head_dim = 128, .factor = 4, .original_max_position = 32768},
       {1, 0.177827939, 0.0316227786, 0.00537532149, 0.000602941145, 4.44569851e-05, 7.90569356e-06, 1.40585337e-06},
       1.1386294361119891},
  };
  for (YarnCase yarn : cases) {
    yarn.config.kind = RopeKind::yarn;
    const std::vector<float> got = rope_frequencies(yarn.config);
    ASSERT_EQ(static_cast<std::int64_t>(got.size()), yarn.config.head_dim / 2);
    const std::size_t step = got.size() / 8;
    for (std::size_t i = 0; i < 8; ++i) EXPECT_NEAR(got[i * step] / yarn.frequencies[i], 1.0, 1e-6) << i;
    EXPECT_NEAR(rope_attention_factor(yarn.config), yarn.attention_factor, 1e-15);
  }
  EXPECT_EQ(rope_attention_factor({.kind = RopeKind::linear, .factor = 4, .attention_factor = 2}), 1.0);
  EXPECT_EQ(rope_attention_factor({.kind = RopeKind::yarn, .factor = 1}), 1.0);
  expect_rejected([] { rope_frequencies({.kind = RopeKind::yarn, .head_dim = 8, .beta_slow = 0}); }, "beta_slow 0");
}

TEST(Rope, RejectsBadArguments) {
  World world(DeviceKind::cpu, 1);
  const TensorView x = world.in(DType::f32, {2, 3, 8}, Values(48)), p = world.in(DType::i32, {2}, Values(2));
  const TensorView f = world.in(DType::f32, {4}, Values(4));
  Stream& s = world.stream();
  expect_rejected(
      [&] {
        rope(s, {.x = world.in(DType::f32, {2, 3, 7}, Values(42)), .positions = p, .frequencies = f});
      },
      "at least 2 * frequencies");
  expect_rejected([&] { rope(s, {.x = x, .positions = p.rows(0, 1), .frequencies = f}); }, "positions has shape");
  expect_rejected([&] { rope(s, {.x = x, .positions = p, .frequencies = f.reshape({2, 2})}); }, "frequencies");
  expect_rejected([&] { rope(s, {.x = x, .positions = f, .frequencies = f}); }, "positions is float32");
  expect_rejected([&] { rope_frequencies({.head_dim = 7}); }, "head_dim 7");
}

}  // namespace rope_cases
}  // namespace hawser::ops
