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
    // Of zeros and of values below the normal ones, all codes are 0.
    const bool small = scale < 0x1p-126;
    std::vector<int> codes(64, small ? 0 : 7);
    for (std::size_t i = 0; i < 64; ++i) {
      const bool zero = i % 3 != 0 || small;
      x.push_back(zero ? 0 : (i % 2 == 0 ? -1 : 1) * (i == 3 ? 1 : 0.5) * scale);
      if (scale == infinity || zero) continue;
      codes[i] = i == 3 ? 15 : i % 2 == 0 ? 2 : 12;  // -0.5 is nearest to -0.525, 0.5 to 0.441: the bound is 0.50166342
    }
    const float stored = small ? 0 : static_cast<float>(scale);
    append(bytes, scale == infinity ? std::numeric_limits<float>::quiet_NaN() : stored, codes);
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

// All codes in both halves of a byte, with one scale or another, as rows of one block or of several; all columns, and
// some of them.
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
    const Values all = dequantized(scales, codes, dtype);
    for (const std::int64_t rows : {1, 2, 4}) {
      const std::int64_t columns = 256 / rows;
      for (const auto& [first, count] : {std::pair(std::int64_t{0}, columns), std::pair(std::int64_t{8}, columns - 32),
                                         std::pair(std::int64_t{3}, columns - 4)}) {
        Values expected;
        for (std::int64_t i = 0; i < 256; ++i) {
          const std::int64_t column = i % columns;
          if (column >= first && column < first + count) expected.push_back(all[static_cast<std::size_t>(i)]);
        }
        check_case(
            {cat("values of ", rows, " rows from ", first, " on, ", to_string(dtype)),
             [&](World& world) -> std::vector<Values> {
               const TensorView y = world.out(dtype, {rows, count});
               const TensorView q = world.in(DType::u8, {144}, bytes);
               dequantize_nf4(world.stream(), {.q = as_blocks(q, {rows, columns / 64}), .y = y, .first_column = first});
               return {world.values(y)};
             },
             {expected},
             0});
      }
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
      const TensorView q = as_blocks(world.out(DType::u8, {72}), {1, 2}), y = world.out(DType::f32, {1, 128});
      quantize_nf4(world.stream(), {.x = world.in(DType::f32, {1, 128}, x), .q = q});
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
    const TensorView q = as_blocks(world.out(DType::u8, {kCount / 64 * 36}), {7, kCount / 64 / 7});
    const TensorView y = world.out(DType::f32, {7, kCount / 7});
    quantize_nf4(world.stream(), {.x = world.in(DType::f32, {7, kCount / 7}, x), .q = q});
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

// ---- double quantization ----

TensorView as_double_blocks(const TensorView& bytes, const Shape& shape) {
  return TensorView(bytes.raw(), DType::nf4_double, shape, bytes.device());
}

// Scales 1, 2, 3 and 6 of a tensor: mean 3, group scale 3, and codes of -2/3, -1/3, 0 and 1.
TEST(Nf4Double, AGroupByHand) {
  const std::vector<Nf4Group> groups = nf4_groups(std::vector<float>{1, 2, 3, 6});
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].mean, 3);
  EXPECT_EQ(groups[0].scale, 3);
  EXPECT_EQ(groups[0].code(3), 127);
  EXPECT_EQ(groups[0].code(6), 255);
  EXPECT_EQ(groups[0].value(127), 3);
  EXPECT_EQ(groups[0].value(255), 6);
  EXPECT_NEAR(groups[0].value(groups[0].code(1)), 1, 0.02);
  EXPECT_NEAR(groups[0].value(groups[0].code(2)), 2, 0.02);
  // Equal scales: the mean is all there is.
  const Nf4Group equal = nf4_groups(std::vector<float>(300, 0.25f)).at(1);
  EXPECT_EQ(equal.scale, 0);
  EXPECT_EQ(equal.value(equal.code(0.25f)), 0.25f);
}

TEST(Nf4Double, ACodeIsTheNearestOfTheMap) {
  for (int i = 0; i < 256; ++i) {
    const auto at = static_cast<std::size_t>(i);
    EXPECT_EQ(dynamic_code(kSignedDynamicMap, kSignedDynamicMap[at]), i);
    if (i == 255) continue;
    EXPECT_LT(kSignedDynamicMap[at], kSignedDynamicMap[at + 1]);
    const float middle = (kSignedDynamicMap[at] + kSignedDynamicMap[at + 1]) * 0.5f;
    EXPECT_EQ(dynamic_code(kSignedDynamicMap, middle), i);
    EXPECT_EQ(dynamic_code(kSignedDynamicMap, std::nextafter(middle, 2.0f)), i + 1);
  }
  EXPECT_EQ(dynamic_code(kSignedDynamicMap, -2), 0);
  EXPECT_EQ(dynamic_code(kSignedDynamicMap, 2), 255);
}

// Rows of three blocks in two groups of a flat, in an order of their own; a block without a place stays as it is. Each
// device has the codes of nf4, and scales and values of Nf4Group.
TEST(Nf4Double, BlocksHaveTheirGroups) {
  constexpr std::int64_t kRows = 5, kBlocks = 3, kColumns = 64 * kBlocks;
  Values x = random_values(kRows * kColumns, 11);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= 1 + static_cast<double>(i / 64);
  const Values places = {256, 257, 258, 3, 4, 5, 0, 1, 2, 259, 260, 261, 6, 7, 8}, row_places = {256, 3, 0, 259, 6};
  std::array<std::vector<float>, 2> scales = {std::vector<float>(9), std::vector<float>(6)};
  Values maxima(512, 0);
  for (std::size_t b = 0; b < places.size(); ++b) {
    double largest = 0;
    for (std::size_t i = 0; i < 64; ++i) largest = std::max(largest, std::abs(rounded(x[64 * b + i], DType::f32)));
    const auto place = static_cast<std::size_t>(places[b]);
    scales[place / 256][place % 256] = static_cast<float>(largest);
    maxima[place] = largest;
  }
  std::vector<Nf4Group> groups = nf4_groups(scales[0]);
  groups.push_back(nf4_groups(scales[1]).front());
  Values group_values;
  for (const Nf4Group& group : groups) {
    group_values.push_back(static_cast<double>(group.scale));
    group_values.push_back(static_cast<double>(group.mean));
  }
  Values bytes, values;
  {
    World world(DeviceKind::cpu, 1);
    const TensorView single = world.out(DType::u8, {kRows * kBlocks * 36});
    quantize_nf4(world.stream(),
                 {.x = world.in(DType::f32, {kRows, kColumns}, x), .q = as_blocks(single, {kRows, kBlocks})});
    const Values of = world.values(single);
    for (std::size_t b = 0; b < places.size(); ++b) {
      const auto place = static_cast<std::size_t>(places[b]);
      const Nf4Group& group = groups[place / 256];
      const std::uint8_t code = group.code(static_cast<float>(maxima[place]));
      bytes.push_back(code);
      for (std::size_t i = 0; i < 32; ++i) {
        const double pair = of[36 * b + 4 + i];
        bytes.push_back(pair);
        for (const int half : {static_cast<int>(pair) >> 4, static_cast<int>(pair) & 15}) {
          values.push_back(static_cast<double>(group.value(code) * kNf4Values[static_cast<std::size_t>(half)]));
        }
      }
    }
  }
  for (const DeviceKind kind : devices()) {
    World world(kind, 2);
    const TensorView q = world.out(DType::u8, {kRows * kBlocks * 33}), y = world.out(DType::f32, {kRows, kColumns});
    const TensorView blocks = as_double_blocks(q, {kRows, kBlocks}), of = world.in(DType::f32, {2, 2}, group_values);
    const TensorView found = world.in(DType::f32, {512}, Values(512, 0));
    const TensorView at = world.in(DType::i32, {kRows * kBlocks}, places);
    quantize_nf4(world.stream(),
                 {.x = world.in(DType::f32, {kRows, kColumns}, x), .q = blocks, .maxima = found, .places = at});
    encode_nf4_scales(world.stream(), {.maxima = found, .groups = of, .places = at, .q = blocks});
    dequantize_nf4(world.stream(), {.q = blocks, .y = y, .scales = {of, world.in(DType::i32, {kRows}, row_places)}});
    EXPECT_EQ(world.values(q), bytes);
    EXPECT_EQ(world.values(found), maxima);
    EXPECT_EQ(world.values(y), values);
  }
}

TEST(Nf4Double, ABlockWithoutAPlaceHasNoScale) {
  for (const DeviceKind kind : devices()) {
    World world(kind, 1);
    const TensorView bytes = world.out(DType::u8, {66}), q = as_double_blocks(bytes, {2});
    const TensorView maxima = world.in(DType::f32, {256}, Values(256, 0)), places = world.in(DType::i32, {2}, {-1, 1});
    quantize_nf4(world.stream(),
                 {.x = world.in(DType::f32, {128}, Values(128, 2)), .q = q, .maxima = maxima, .places = places});
    encode_nf4_scales(world.stream(),
                      {.maxima = maxima, .groups = world.in(DType::f32, {1, 2}, {4, 1}), .places = places, .q = q});
    const Values got = world.values(bytes), found = world.values(maxima);
    EXPECT_EQ(got[0], 0);
    EXPECT_EQ(got[33], (Nf4Group{4, 1}.code(2)));
    EXPECT_EQ(found[0], 0);
    EXPECT_EQ(found[1], 2);
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
  const TensorView one = as_blocks(q, {3, 1});
  expect_rejected([&] { dequantize_nf4(world.stream(), {.q = one, .y = rows, .first_column = 1}); }, "columns");
  const TensorView doubly = as_double_blocks(world.out(DType::u8, {99}), {3, 1});
  expect_rejected([&] { dequantize_nf4(world.stream(), {.q = doubly, .y = rows}); }, "groups");
  expect_rejected([&] { quantize_nf4(world.stream(), {.x = rows, .q = doubly}); }, "maxima");
  expect_rejected([&] { quantize_nf4(world.stream(), {.x = rows, .q = one, .maxima = x}); }, "maxima");
}

}  // namespace quantize_nf4_cases
}  // namespace hawser::ops
