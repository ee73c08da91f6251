#include "ops/quantize/quantize_blocks.h"

#include <limits>

#include "ops/testing/case_support.h"

namespace hawser::ops {
namespace quantize_blocks_cases {

using namespace testing;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double code(double value, DType dtype) {
  return dispatch_fp8(dtype,
                      [&](auto tag) { return static_cast<double>(decltype(tag)(static_cast<float>(value)).bits); });
}

// By hand: the amax of a block, and its scale in E4M3, whose largest value is 448.
TEST(QuantizeBlocks, ScalesAndCodesByHand) {
  struct Row {
    double amax, scale;
    int code_of_amax, code_of_one;  // of amax and of 1, in one block
  };
  // 448 = 1.75 * 2^8: code 0 1111 110. 1 = 2^0: 0 0111 000 = 0x38; 2^-6 is the smallest normal number, 0x08.
  for (const Row& row :
       {Row{448, 1, 0x7e, 0x38}, Row{449, 2, 0x76, 0x30}, Row{896, 2, 0x7e, 0x30}, Row{7, 0x1p-6, 0x7e, 0x68},
        Row{1, 0x1p-8, 0x78, 0x78}, Row{28672, 64, 0x7e, 0x08}, Row{0x1p30, 0x1p22, 0x78, 0x00}}) {
    SCOPED_TRACE(row.amax);
    Values x(130, 0);
    x[3] = -row.amax;
    x[100] = 1;
    x[129] = 1;  // the second block of the row
    Values q(130, 0);
    q[3] = 0x80 | row.code_of_amax;
    q[100] = row.code_of_one;
    q[129] = 0x78;
    if (row.amax == 1) q[100] = 0x78;
    check_case({"blocks by hand",
                [&](World& world) -> std::vector<Values> {
                  const QuantizeBlocks args{.x = world.in(DType::f32, {1, 130}, x),
                                            .q = world.out(DType::f8e4m3, {1, 130}),
                                            .scales = world.out(DType::f32, {2, 4})};
                  quantize_blocks(world.stream(), args);
                  return {world.values(args.q), world.values(args.scales)};
                },
                {q, {row.scale, 0, 0, 0, 0x1p-8, 0, 0, 0}},
                0});
  }
}

struct BlockMatrixCase {
  std::int64_t rows, columns, pad = 0;
  ScaleKind kind = ScaleKind::vec128;
  DType in = DType::bf16, out = DType::f8e4m3;
  ScaleRule rule = {.power_of_two = true};
  bool rows_wanted = true, transposed_wanted = true, masked = false;
};

// Scales and codes of a matrix, from the amaxes of its blocks.
struct Quantized {
  Values q, scales;
};
Quantized quantized(const BlockMatrixCase& m, const Values& x, const Values& mask, bool transposed) {
  const std::int64_t rows = transposed ? m.columns : m.rows, columns = transposed ? m.rows : m.columns;
  const auto at = [&](std::int64_t r, std::int64_t c) { return x[transposed ? c * m.columns + r : r * m.columns + c]; };
  const auto index = [&](std::int64_t r, std::int64_t c) {
    return static_cast<std::size_t>(scale_index(m.kind, rows, columns, r, c));
  };
  Values amaxes(static_cast<std::size_t>(scale_shape(m.kind, rows, columns).elements()), -1);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const double counted = mask[transposed ? c : r] != 0 ? std::abs(at(r, c)) : 0.0;
      double& amax = amaxes[index(r, c)];
      amax = std::isnan(counted) || std::isnan(amax) ? NAN : std::max(amax, counted);
    }
  }
  Quantized out{Values(x.size()), amaxes};
  for (double& scale : out.scales) {
    const double amax = scale;
    const float exact = static_cast<float>(amax) / std::ldexp(largest_fp8(m.out), -m.rule.margin);
    scale = exact < 0x1p-126f ? 0x1p-126f : exact;
    if (m.rule.power_of_two) scale = std::exp2(std::ceil(std::log2(scale)));
    if (amax == 0) scale = 1;
    if (!std::isfinite(amax)) scale = NAN;
    if (amax < 0) scale = 0;  // of no element
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const float inverse = 1.0f / static_cast<float>(out.scales[index(r, c)]);
      out.q[static_cast<std::size_t>(r * columns + c)] = code(static_cast<float>(at(r, c)) * inverse, m.out);
    }
  }
  return out;
}

// Values over many magnitudes, blocks of zeros, and one value in a masked row that is larger than all others.
Case blocks_case(const BlockMatrixCase& m) {
  Values x = random_values(m.rows * m.columns, 7, m.in), mask(static_cast<std::size_t>(m.rows), 1);
  for (std::int64_t r = 0; r < m.rows; ++r) {
    if (m.masked && r % 3 == 1) mask[static_cast<std::size_t>(r)] = 0;
    for (std::int64_t c = 0; c < m.columns; ++c) {
      double& value = x[static_cast<std::size_t>(r * m.columns + c)];
      value = rounded(value * std::exp2((r * 5 + c / 128 * 7) % 24 - 16), m.in);
      if (c / 128 == 1 && r / 128 == 1) value = 0;
      if (m.masked && mask[static_cast<std::size_t>(r)] == 0) value *= 4096;
    }
  }
  const Quantized q = quantized(m, x, mask, false), transposed = quantized(m, x, mask, true);
  const auto run = [=](World& world) -> std::vector<Values> {
    QuantizeBlocks args{.x = world.in(m.in, {m.rows, m.columns}, x, m.pad), .kind = m.kind, .rule = m.rule};
    if (m.rows_wanted) {
      args.q = world.out(m.out, {m.rows, m.columns});
      args.scales = world.out(DType::f32, scale_shape(m.kind, m.rows, m.columns));
    }
    if (m.transposed_wanted) {
      args.transposed = world.out(m.out, {m.columns, m.rows});
      args.transposed_scales = world.out(DType::f32, scale_shape(m.kind, m.columns, m.rows));
    }
    if (m.masked) args.mask = world.in(DType::i32, {m.rows}, mask);
    quantize_blocks(world.stream(), args);
    std::vector<Values> out;
    for (const TensorView& view : {args.q, args.scales, args.transposed, args.transposed_scales}) {
      out.push_back(view.empty() ? Values() : world.values(view));
    }
    return out;
  };
  return {cat("quantize_blocks ", m.rows, " x ", m.columns, " ", to_string(m.in), ", ", to_string(m.kind)),
          run,
          {m.rows_wanted ? q.q : Values(), m.rows_wanted ? q.scales : Values(),
           m.transposed_wanted ? transposed.q : Values(), m.transposed_wanted ? transposed.scales : Values()},
          0};
}

TEST(QuantizeBlocks, HasTheBitsOfTheCastsOfEachBlock) {
  for (const ScaleKind kind : {ScaleKind::vec128, ScaleKind::block128}) {
    for (const DType in : {DType::f32, DType::bf16}) {
      check_case(blocks_case({.rows = 1, .columns = 1, .kind = kind, .in = in}));
      check_case(blocks_case({.rows = 37, .columns = 53, .pad = 3, .kind = kind, .in = in, .masked = true}));
      check_case(blocks_case({.rows = 272, .columns = 272, .pad = 8, .kind = kind, .in = in, .masked = true}));
      check_case(blocks_case({.rows = 257, .columns = 144, .kind = kind, .in = in, .transposed_wanted = false}));
      check_case(blocks_case({.rows = 128, .columns = 256, .kind = kind, .in = in, .rows_wanted = false}));
      check_case(blocks_case({.rows = 130, .columns = 640, .kind = kind, .in = in, .out = DType::f8e5m2}));
      check_case(blocks_case({.rows = 144, .columns = 136, .kind = kind, .in = in, .rule = {.margin = 2}}));
    }
  }
}

// A value that is not finite makes its block NaN, and no other.
TEST(QuantizeBlocks, ABlockThatIsNotFiniteIsNan) {
  for (const double bad : {kInfinity, -kInfinity, static_cast<double>(NAN)}) {
    for (const DeviceKind kind : devices()) {
      World world(kind, 1);
      Values x(2 * 256, 1);
      x[256 + 130] = bad;
      const QuantizeBlocks args{.x = world.in(DType::bf16, {2, 256}, x),
                                .q = world.out(DType::f8e4m3, {2, 256}),
                                .scales = world.out(DType::f32, {2, 4}),
                                .transposed = world.out(DType::f8e4m3, {256, 2}),
                                .transposed_scales = world.out(DType::f32, {1, 256})};
      quantize_blocks(world.stream(), args);
      const Values q = world.values(args.q), scales = world.values(args.scales);
      const Values transposed = world.values(args.transposed), of_columns = world.values(args.transposed_scales);
      for (std::size_t i = 0; i < q.size(); ++i) {
        EXPECT_EQ(q[i], i >= 256 + 128 ? 0x7f : 0x78) << i;
        EXPECT_EQ(transposed[i], i / 2 == 130 ? 0x7f : 0x78) << i;
      }
      for (std::size_t i = 0; i < of_columns.size(); ++i) EXPECT_EQ(std::isnan(of_columns[i]), i == 130) << i;
      EXPECT_EQ(scales[1], 0x1p-8);
      EXPECT_TRUE(std::isnan(scales[5]));
      EXPECT_EQ(scales[6], 0);
    }
  }
}

TEST(QuantizeBlocks, RejectsWhatItCannotWrite) {
  World world(DeviceKind::cpu, 1);
  const TensorView x = world.in(DType::f32, {130, 260}, Values(130 * 260)), q = world.out(DType::f8e4m3, {130, 260});
  const auto scales = [&](const Shape& shape) { return world.out(DType::f32, shape); };
  const auto call = [&](const QuantizeBlocks& args) { quantize_blocks(world.stream(), args); };
  expect_rejected([&] { call({.x = x, .kind = ScaleKind::one, .q = q, .scales = scales({1})}); }, "one scale");
  expect_rejected([&] { call({.x = x}); }, "nothing to write");
  expect_rejected([&] { call({.x = x, .q = q}); }, "q without scales");
  expect_rejected([&] { call({.x = x, .q = q, .scales = scales({3, 130})}); }, "scales has shape");
  expect_rejected(
      [&] {
        call({.x = x, .kind = ScaleKind::block128, .q = q, .scales = scales({2, 3})});
      },
      "scales has shape");
  call({.x = x, .q = q, .scales = scales({3, 132})});
  call({.x = x, .kind = ScaleKind::block128, .q = q, .scales = scales({2, 4})});
  world.stream().synchronize();
}

}  // namespace quantize_blocks_cases
}  // namespace hawser::ops
