#include "ops/quantize/quantize_nf4.h"

#include <limits>

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace quantize_nf4_cases {

using namespace testing;

// As published: QLoRA (arXiv 2305.14314), appendix E.
const Values kPublished = {-1.0,
                           -0.6961928009986877,
                           -0.5250730514526367,
                           -0.39491748809814453,
                           -0.28444138169288635,
                           -0.18477343022823334,
                           -0.09105003625154495,
                           0.0,
                           0.07958029955625534,
                           0.16093020141124725,
                           0.24611230194568634,
                           0.33791524171829224,
                           0.44070982933044434,
                           0.5626170039176941,
                           0.7229568362236023,
                           1.0};

// Blocks as bytes, which World can set and read.
TensorView as_blocks(const TensorView& bytes, const Shape& shape) {
  return TensorView(bytes.raw(), DType::nf4, shape, bytes.device());
}

void append(Values& bytes, float scale, const std::vector<int>& codes) {
  const auto bits = std::bit_cast<std::uint32_t>(scale);
  for (int k = 0; k < 4; ++k) bytes.push_back(bits >> (8 * k) & 0xff);
  for (std::size_t i = 0; i < codes.size(); i += 2) bytes.push_back(codes[i] * 16 + codes[i + 1]);
}

std::vector<Values> quantize(World& world, DType dtype, const Shape& shape, const Values& x) {
  const std::int64_t blocks = shape.elements() / 64;
  const TensorView bytes = world.out(DType::u8, {blocks * 36});
  Shape of = shape;
  of[of.rank() - 1] /= 64;
  quantize_nf4(world.stream(), {.x = world.in(dtype, shape, x), .q = as_blocks(bytes, of)});
  return {world.values(bytes)};
}

// Each level of a block whose largest value is 1, and values between two levels: 0.1 is nearer to 0.0796 than to 0.161.
TEST(Nf4, CodesByHand) {
  Values x(64, 0);
  std::vector<int> codes(64, 7);
  const auto set = [&](std::size_t i, double value, int code) {
    x[i] = value;
    codes[i] = code;
  };
  for (int i = 0; i < 16; ++i) set(static_cast<std::size_t>(i), kPublished[static_cast<std::size_t>(i)], i);
  set(20, 0.1, 8);
  set(21, 0.121, 9);  // the bound is 0.12025525
  set(22, 0.12, 8);
  set(23, -0.04, 7);  // -0.04552501
  set(24, -0.05, 6);
  set(25, 0.86, 14);  // 0.86147842
  set(26, 0.862, 15);
  set(27, -0.848, 1);  // -0.84809640
  set(28, -0.8482, 0);
  set(63, 1e-30, 7);
  Values bytes;
  append(bytes, 1, codes);
  check_case({"a block by hand", [&](World& world) { return quantize(world, DType::f32, {64}, x); }, {bytes}, 0});
  // The first weight is the upper half of the first byte.
  EXPECT_EQ(bytes[4], 0x01);
  EXPECT_EQ(bytes[5], 0x23);
}

// Blocks of other sizes of values, each by itself.
TEST(Nf4, EachBlockHasItsScale) {
  Values x, bytes;
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double scale : {3.0, 0.015625, 0.0, 0x1p-130, 0x1p100, infinity}) {
    std::vector<int> codes(64, 7);
    for (std::size_t i = 0; i < 64; ++i) {
      const bool zero = i % 3 != 0 || scale == 0;
      x.push_back(zero ? 0 : (i % 2 == 0 ? -1 : 1) * (i == 3 ? 1 : 0.5) * scale);
      if (scale == infinity || zero) continue;
      codes[i] = i == 3 ? 15 : i % 2 == 0 ? 2 : 12;  // -0.5 is nearest to -0.525, 0.5 to 0.441: the bound is 0.50166342
    }
    append(bytes, scale == infinity ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(scale), codes);
  }
  check_case({"blocks of a matrix",
              [&](World& world) {
                return quantize(world, DType::bf16, {3, 128}, x);
              },
              {bytes},
              0});
}

Values dequantized(const Values& scales, const std::vector<int>& codes, DType dtype) {
  Values out;
  for (std::size_t i = 0; i < codes.size(); ++i) {
    const float value =
        static_cast<float>(scales[i / 64]) * static_cast<float>(kPublished[static_cast<std::size_t>(codes[i])]);
    out.push_back(rounded(value, dtype));
  }
  return out;
}

// All codes in both halves of a byte, with one scale or another, of a matrix and of several.
TEST(Nf4, ValuesOfAllCodes) {
  const Values scales = {0.7f, 12.5f, 0, 0x1p-20};
  std::vector<int> codes;
  Values bytes;
  for (std::size_t b = 0; b < scales.size(); ++b) {
    std::vector<int> own;
    for (int i = 0; i < 64; ++i) own.push_back((i + static_cast<int>(b) + i / 16 % 2) % 16);
    append(bytes, static_cast<float>(scales[b]), own);
    codes.insert(codes.end(), own.begin(), own.end());
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const Shape& shape : {Shape{256}, Shape{2, 128}, Shape{2, 2, 64}}) {
      check_case({cat("values ", shape.text(), " ", to_string(dtype)),
                  [&](World& world) -> std::vector<Values> {
                    Shape of = shape;
                    of[of.rank() - 1] /= 64;
                    const TensorView y = world.out(dtype, shape);
                    const TensorView q = world.in(DType::u8, {144}, bytes);
                    dequantize_nf4(world.stream(), {.q = as_blocks(q, of), .y = y});
                    return {world.values(y)};
                  },
                  {dequantized(scales, codes, dtype)},
                  0});
    }
  }
}

// A block with a value that is not finite is NaN.
TEST(Nf4, NotFinite) {
  for (const DeviceKind kind : devices()) {
    for (const double value : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
      World world(kind, 1);
      Values x = random_values(128, 5);
      x[3] = value;
      const TensorView q = as_blocks(world.out(DType::u8, {72}), {2}), y = world.out(DType::f32, {128});
      quantize_nf4(world.stream(), {.x = world.in(DType::f32, {128}, x), .q = q});
      dequantize_nf4(world.stream(), {.q = q, .y = y});
      const Values got = world.values(y);
      for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(std::isnan(got[i]), i < 64) << i;
    }
  }
}

// Half the largest distance of two levels.
TEST(Nf4, RandomValuesAreNear) {
  constexpr std::int64_t kCount = 64 * 777;
  const Values x = random_values(kCount, 7);
  for (const DeviceKind kind : devices()) {
    World world(kind, 2);
    const TensorView q = as_blocks(world.out(DType::u8, {kCount / 64 * 36}), {kCount / 64});
    const TensorView y = world.out(DType::f32, {kCount});
    quantize_nf4(world.stream(), {.x = world.in(DType::f32, {kCount}, x), .q = q});
    dequantize_nf4(world.stream(), {.q = q, .y = y});
    const Values got = world.values(y);
    for (std::size_t b = 0; b < got.size(); b += 64) {
      double largest = 0;
      for (std::size_t i = b; i < b + 64; ++i) largest = std::max(largest, std::abs(x[i]));
      for (std::size_t i = b; i < b + 64; ++i) {
        double nearest = 10;
        for (const double level : kPublished) nearest = std::min(nearest, std::abs(x[i] - level * largest));
        ASSERT_LE(std::abs(got[i] - x[i]), nearest + 1e-6 * largest);
      }
    }
  }
}

TEST(Nf4, Rejections) {
  World world(DeviceKind::cpu, 1);
  const TensorView x = world.out(DType::f32, {2, 96}), q = as_blocks(world.out(DType::u8, {108}), {3});
  expect_rejected([&] { quantize_nf4(world.stream(), {.x = x, .q = q}); }, "has no whole blocks of 64");
  const TensorView rows = world.out(DType::f32, {3, 64});
  expect_rejected([&] { quantize_nf4(world.stream(), {.x = rows, .q = q}); }, "q");
  expect_rejected([&] { dequantize_nf4(world.stream(), {.q = q, .y = rows}); }, "q");
  expect_rejected([&] { dequantize_nf4(world.stream(), {.q = world.out(DType::u8, {3, 36}), .y = rows}); }, "q");
}

}  // namespace quantize_nf4_cases
}  // namespace hawser::ops
