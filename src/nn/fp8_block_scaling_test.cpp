// Linears whose operands have a scale for each block: the three GEMMs, beside adapters, and a saved input.
#include <gtest/gtest.h>

#include <cmath>

#include "nn/blocks/linear_input.h"
#include "nn/flat.h"
#include "nn/precision/fp8_block_scaling.h"
#include "nn/testing/block_reference.h"
#include "nn/testing/quantized_context.h"
#include "ops/copy/copy.h"

namespace hawser::nn {
namespace fp8_block_scaling_test {

using testing::get;
using testing::normals;
using testing::QuantizedContext;
using testing::TestSink;
using testing::Vector;

// Several blocks in each dimension, the last one smaller.
constexpr std::int64_t kRows = 136, kIn = 272, kOut = 144, kRank = 4;

struct Input {
  Vector x, dy, w, a, b;
};
struct Output {
  Vector y, dx, dw, da, db;
};

// `saved`: the input is saved in FP8, and the gradient of W reads it so. `adapter`: W is frozen.
Output run(const Input& in, const Quantizer* quantizer, bool saved, bool adapter = false) {
  const auto device = make_cpu_device({.threads = 1});
  QuantizedContext ctx(*device, quantizer, LinearFormat::fp8_block);
  const std::vector<Param> params = {full_param("w", {kOut, kIn}, {}, true), full_param("a", {kRank, kIn}, {}, true),
                                     full_param("b", {kOut, kRank}, {}, true)};
  ctx.rows_ = {kRows, kRows};
  ctx.trainable_ = TrainableParams({!adapter, adapter, adapter});
  Vector mask(kRows, 1);
  mask[5] = 0;
  ctx.batch_.token_mask = ctx.make(DType::i32, {kRows}, mask);
  const TensorView x = ctx.make(DType::f32, {kRows, kIn}, in.x), dy = ctx.make(DType::f32, {kRows, kOut}, in.dy),
                   y = ctx.make(DType::f32, {kRows, kOut}), dx = ctx.make(DType::f32, {kRows, kIn});
  ctx.weights_ = {ctx.make(DType::f32, {kOut, kIn}, in.w), ctx.make(DType::f32, params[1].shape, in.a),
                  ctx.make(DType::f32, params[2].shape, in.b)};
  Linear linear{.site = Site::up_projection, .weight = 0};
  if (adapter) linear.adapters = {{.a = 1, .b = 2, .rank = kRank, .outputs = kOut, .scale = 0.5}};
  TestSink sink(ctx, params, /*accumulate=*/false);
  if (adapter) sink.reject(0);
  if (!adapter) {
    sink.reject(1);
    sink.reject(2);
  }
  Scaled of_product = x, of_gradient = x;
  if (saved) {
    const SavedSpec matrix{"x", DType::f8e4m3, {kIn, kRows}, Pass::forward, Pass::backward};
    const SavedSpec scales = scale_spec("x_scale", matrix, LinearFormat::fp8_block);
    EXPECT_EQ(scales.shape, (Shape{2, kIn}));
    const SavedInput to{ctx.make(matrix.dtype, matrix.shape), ctx.make(scales.dtype, scales.shape)};
    const auto write = [&](const TensorView& view, const ops::Fp8Output&) {
      ops::copy(ctx.compute(), {.x = x, .y = view});
    };
    of_product = write_input(ctx, linear, x.shape(), to, Linear::ReadBy::product, {write, true});
    of_gradient = to.read();
  }
  const AdapterTensors tensors{adapter ? ctx.make(DType::f32, {kRank, kRows}) : TensorView(),
                               linear.make_inner_gradient(ctx)};
  linear.forward(ctx, of_product, y, tensors.inner);
  linear.adapter_gradient(ctx, dy, tensors.inner_gradient);
  const Scaled rounded = linear.rounded_once(ctx, dy);
  linear.input_gradient(ctx, dy, dx, tensors.inner_gradient, 0, rounded);
  linear.weight_gradient(ctx, dy, of_gradient, sink, tensors, rounded);
  ctx.finish();
  const auto gradient = [&](std::size_t i) { return sink.views()[i].empty() ? Vector() : get(sink.views()[i]); };
  return {get(y), get(dx), gradient(0), gradient(1), gradient(2)};
}

// Blocks with factors of their own: 2^0 to 2^9 by 128 columns and rows. Padding is beyond all others in x, and zero in
// dy.
Input inputs(const std::function<double(double)>& round) {
  const auto make = [&](const char* name, std::int64_t rows, std::int64_t columns, bool blocks) {
    Vector values = normals(name, rows * columns);
    for (std::int64_t i = 0; i < rows * columns; ++i) {
      double& value = values[static_cast<std::size_t>(i)];
      value = round(value);
      if (blocks) value *= std::exp2((i / columns / 128 * 5 + i % columns / 128 * 4) % 10);
    }
    return values;
  };
  Input in{make("x", kRows, kIn, true), make("dy", kRows, kOut, true), make("w", kOut, kIn, true),
           make("a", kRank, kIn, false), make("b", kOut, kRank, false)};
  for (std::int64_t c = 0; c < kIn; ++c) in.x[static_cast<std::size_t>(5 * kIn + c)] = 448 * 4096;
  for (std::int64_t c = 0; c < kOut; ++c) in.dy[static_cast<std::size_t>(5 * kOut + c)] = 0;
  return in;
}

void expect_same(const Output& got, const Output& expected) {
  EXPECT_EQ(got.dx, expected.dx);
  EXPECT_EQ(got.dw, expected.dw);
  EXPECT_EQ(got.da, expected.da);
  EXPECT_EQ(got.db, expected.db);
  for (std::int64_t t = 0; t < kRows; ++t) {
    if (t == 5) continue;  // padding
    for (std::int64_t o = 0; o < kOut; ++o) {
      const auto i = static_cast<std::size_t>(t * kOut + o);
      ASSERT_EQ(got.y[i], expected.y[i]) << t << ", " << o;
    }
  }
}

// Integers up to 3 times powers of two are E4M3 numbers with the scale of any block, and all sums are exact.
TEST(Fp8BlockScaling, ExactNumbersHaveTheBitsOfFloat32) {
  const Input in = inputs([](double value) { return std::clamp(std::round(value), -3.0, 3.0); });
  const Fp8BlockScaling quantizer({});
  for (const bool adapter : {false, true}) {
    const Output plain = run(in, nullptr, false, adapter);
    expect_same(run(in, &quantizer, false, adapter), plain);
    if (!adapter) expect_same(run(in, &quantizer, true), plain);
  }
}

double distance(const Vector& a, const Vector& b) {
  double squares = 0, of_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    squares += (a[i] - b[i]) * (a[i] - b[i]);
    of_b += b[i] * b[i];
  }
  return std::sqrt(squares / of_b);
}

// E4M3 rounds by at most 2^-4 of a number, by less than 0.03 in the root mean square; products of two by less than
// 0.05.
TEST(Fp8BlockScaling, RoundsEachBlockByItsScale) {
  const Input in = inputs([](double value) { return value; });
  for (const Fp8BlockOptions& options : {Fp8BlockOptions{}, {.power_of_two = false}, {.margin = 3}}) {
    const Fp8BlockScaling quantizer(options);
    const Output plain = run(in, nullptr, false), fp8 = run(in, &quantizer, false), saved = run(in, &quantizer, true);
    expect_same(saved, fp8);
    for (const auto& [got, expected] : {std::pair(fp8.dx, plain.dx), {fp8.dw, plain.dw}}) {
      EXPECT_LT(distance(got, expected), 0.05);
      EXPECT_GT(distance(got, expected), 0.005) << "nothing is rounded";
    }
  }
}

TEST(Fp8BlockScaling, WeightsKeepNoScales) {
  const FlatSpecOf spec_of = with_weights_quantized_on_use(common_domain, [](int block) { return block == 1; });
  Param weight = full_param("w", {32, 32}, {}, true);
  EXPECT_FALSE(spec_of(weight, {.block = 1}).quantized_on_use);
  weight.of_linear = true;
  EXPECT_TRUE(spec_of(weight, {.block = 1}).quantized_on_use);
  EXPECT_FALSE(spec_of(weight, {.block = 0}).quantized_on_use);
  EXPECT_FALSE(spec_of(weight, {.kind = UnitId::Kind::head}).quantized_on_use);
  const FlatSpec spec = spec_of(weight, {.block = 1});
  EXPECT_TRUE(spec.fp8());
  EXPECT_EQ(spec.gathered_in(DType::bf16), DType::bf16);
  EXPECT_EQ(Flat("flat", spec, {weight}).scale_count(), 0);
}

}  // namespace fp8_block_scaling_test
}  // namespace hawser::nn
