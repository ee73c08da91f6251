// Adapters beside a frozen weight in FP8: what the GEMMs with W read is quantized, what the adapters read is not.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "nn/blocks/linear.h"
#include "nn/flat.h"
#include "nn/precision/fp8_scaling.h"
#include "nn/testing/block_reference.h"
#include "nn/testing/quantized_context.h"
#include "ops/copy/transpose.h"

namespace hawser::nn {
namespace fp8_adapters_test {

using testing::get;
using testing::normals;
using testing::QuantizedContext;
using testing::TestSink;
using testing::Vector;

constexpr std::int64_t kRows = 7, kIn = 32, kOut = 24, kRank = 4, kSome = 16;

struct Input {
  Vector x, dy, w, a, b, b_of_some;
};

struct Output {
  Vector y, dx;
  std::vector<Vector> gradients;  // of a, b and b_of_some
};

// W is frozen. With a quantizer it is quantized as a flat of Linears is.
Output run(const Input& in, const std::vector<Adapter>& adapters, const Quantizer* quantizer) {
  const auto device = make_cpu_device({.threads = 1});
  QuantizedContext ctx(*device, quantizer, LinearFormat::fp8_current);
  const std::vector<Param> params = {
      full_param("w", {kOut, kIn}, {}, true), full_param("a", {2 * kRank, kIn}, {}, true),
      full_param("b", {kOut, kRank}, {}, true), full_param("b_of_some", {kSome, kRank}, {}, true)};
  ctx.rows_ = {kRows, kRows};
  ctx.trainable_ = TrainableParams({false, true, true, true});
  ctx.batch_.token_mask = ctx.make(DType::i32, {kRows}, Vector(kRows, 1));
  const TensorView x = ctx.make(DType::f32, {kRows, kIn}, in.x), dy = ctx.make(DType::f32, {kRows, kOut}, in.dy),
                   y = ctx.make(DType::f32, {kRows, kOut}), dx = ctx.make(DType::f32, {kRows, kIn}),
                   w = ctx.make(DType::f32, {kOut, kIn}, in.w);
  ctx.weights_ = {w, ctx.make(DType::f32, params[1].shape, in.a), ctx.make(DType::f32, params[2].shape, in.b),
                  ctx.make(DType::f32, params[3].shape, in.b_of_some)};
  if (quantizer != nullptr) {
    const Flat flat("w", {.trainable = false, .stored = {}, .gathered = DType::f8e4m3, .scaled = true}, {params[0]});
    const TensorView amax = ctx.make(DType::f32, {1}), scale = ctx.make(DType::f32, {1}),
                     q = ctx.make(DType::f8e4m3, {kOut, kIn}), transposed = ctx.make(DType::f8e4m3, {kIn, kOut});
    const TensorView elements = w.reshape({kOut * kIn});
    quantizer->measure(ctx.compute(), {.flat = flat, .values = elements}, amax);
    quantizer->weight_scales(ctx.compute(), flat, amax, scale);
    quantizer->quantize_weights(ctx.compute(), {.flat = flat, .values = elements}, scale, q.reshape({kOut * kIn}));
    ops::transpose(ctx.compute(), {.x = q, .y = transposed});
    ctx.finish();
    ctx.weights_[0] = q;
    ctx.scales_ = {scale};
    ctx.transposed_ = {transposed};
  }
  const Linear linear{.site = Site::up_projection, .weight = 0, .adapters = adapters};
  TestSink sink(ctx, params, /*accumulate=*/true);
  sink.reject(0);
  const AdapterTensors tensors{ctx.make(DType::f32, {linear.adapter_ranks(), kRows}), linear.make_inner_gradient(ctx)};
  linear.forward(ctx, x, y, tensors.inner);
  linear.adapter_gradient(ctx, dy, tensors.inner_gradient);
  linear.input_gradient(ctx, dy, dx, tensors.inner_gradient);
  linear.weight_gradient(ctx, dy, x, sink, tensors);
  ctx.finish();
  return {get(y), get(dx), {get(sink.views()[1]), get(sink.views()[2]), get(sink.views()[3])}};
}

// Adapters that fill y, whose terms the GEMM with W adds to; one of some rows, whose term is added after it; none.
std::vector<std::vector<Adapter>> cases() {
  const Adapter all{.a = 1, .b = 2, .rank = kRank, .outputs = kOut, .scale = 0.5};
  const Adapter some{
      .a = 1, .b = 3, .rank = kRank, .first_output = kOut - kSome, .outputs = kSome, .a_row = kRank, .scale = 0.5};
  return {{all}, {all, some}, {some}, {}};
}

Vector integers(const std::string& name, std::int64_t count, double factor) {
  Vector values = normals(name, count);
  for (double& value : values) value = factor * std::clamp(std::round(3 * value), -7.0, 7.0);
  return values;
}

Input inputs(const std::function<Vector(const std::string&, std::int64_t)>& make) {
  return {make("x", kRows * kIn),     make("dy", kRows * kOut), make("w", kOut * kIn),
          make("a", 2 * kRank * kIn), make("b", kOut * kRank),  make("b_of_some", kSome * kRank)};
}

// Integers up to 7 and powers of two are E4M3 and, below 4, E5M2 numbers: FP8 then changes no bit.
TEST(Fp8Adapters, ExactNumbersHaveTheBitsOfFloat32) {
  Input in = inputs([](const std::string& name, std::int64_t count) { return integers(name, count, 0.25); });
  for (double& value : in.dy) value = std::clamp(value, -0.75, 0.75);
  const Fp8Scaling quantizer({.power_of_two = true});
  for (const std::vector<Adapter>& adapters : cases()) {
    const Output plain = run(in, adapters, nullptr), fp8 = run(in, adapters, &quantizer);
    EXPECT_EQ(fp8.y, plain.y);
    EXPECT_EQ(fp8.dx, plain.dx);
    EXPECT_EQ(fp8.gradients, plain.gradients);
  }
}

// E4M3 rounds by at most 2^-4 of a number, E5M2 by 2^-3, and numbers below the smallest normal one by half of the
// smallest. So y and dx differ from float32 by no more than the sums of these. The adapters' gradients have its bits.
TEST(Fp8Adapters, OnlyTheGemmsWithWAreRounded) {
  const Input in = inputs([](const std::string& name, std::int64_t count) { return normals(name, count); });
  const Fp8Scaling quantizer({});
  const auto magnitudes = [](Vector values, double tiny) {
    for (double& value : values) value = std::abs(value) + tiny;
    return values;
  };
  const auto transposed = [&] {
    Vector out(in.w.size());
    for (std::int64_t o = 0; o < kOut; ++o) {
      for (std::int64_t i = 0; i < kIn; ++i) {
        out[static_cast<std::size_t>(i * kOut + o)] = in.w[static_cast<std::size_t>(o * kIn + i)];
      }
    }
    return out;
  }();
  const double tiny = 2e-4;
  const Vector of_y = testing::linear(magnitudes(in.x, tiny), magnitudes(in.w, tiny), {}, kIn),
               of_dx = testing::linear(magnitudes(in.dy, tiny), magnitudes(transposed, tiny), {}, kOut);
  for (const std::vector<Adapter>& adapters : cases()) {
    const Output plain = run(in, adapters, nullptr), fp8 = run(in, adapters, &quantizer);
    EXPECT_EQ(fp8.gradients, plain.gradients);
    EXPECT_NE(fp8.y, plain.y);
    EXPECT_NE(fp8.dx, plain.dx);
    for (std::size_t i = 0; i < plain.y.size(); ++i) {
      EXPECT_LE(std::abs(fp8.y[i] - plain.y[i]), (0x1p-4 + 0x1p-4 + 0x1p-8) * of_y[i]);
    }
    for (std::size_t i = 0; i < plain.dx.size(); ++i) {
      EXPECT_LE(std::abs(fp8.dx[i] - plain.dx[i]), (0x1p-3 + 0x1p-4 + 0x1p-7) * of_dx[i]);
    }
  }
}

// DoRA reads the rows of W.
TEST(Fp8Adapters, AMagnitudeIsRejected) {
  const Input in = inputs([](const std::string& name, std::int64_t count) { return normals(name, count); });
  const Fp8Scaling quantizer({});
  const Adapter dora{.a = 1, .b = 2, .magnitude = 2, .rank = kRank, .outputs = kOut};
  EXPECT_THROW(run(in, {dora}, &quantizer), InternalError);
}

}  // namespace fp8_adapters_test
}  // namespace hawser::nn
