// Experts in FP8: each expert's weight has its own scale, and rows that no expert has are not read.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "nn/blocks/expert_gemms.h"
#include "nn/blocks/moe_layer.h"
#include "nn/flat.h"
#include "nn/precision/fp8_scaling.h"
#include "nn/testing/block_reference.h"
#include "ops/copy/transpose.h"
#include "ops/gemm/grouped_gemm.h"

namespace hawser::nn {
namespace fp8_experts_test {

using testing::distance;
using testing::get;
using testing::normals;
using testing::TestContext;
using testing::TestSink;
using testing::Vector;

// How a pass quantizes: `records_only` with amaxes of both operands.
class Fp8Context : public TestContext {
 public:
  Fp8Context(Device& device, const Quantizer* quantizer) : TestContext(device, DType::f32), quantizer_(quantizer) {}
  Quantization quantization(Site site, Operand operand) const override {
    if (quantizer_ == nullptr || (site != Site::up_projection && site != Site::down_projection)) return {};
    const auto i = static_cast<std::size_t>(operand);
    return {.format = LinearFormat::fp8_current,
            .quantizer = quantizer_,
            .operand = operand,
            .records_only = records_only_,
            .scale = scale_,
            .amax = i < amaxes_.size() ? amaxes_[i] : TensorView(),
            .saturated = saturated_,
            .elements = &elements_};
  }
  // Sets a weight: in FP8, as a flat has it, if there is a quantizer.
  void set_weight(std::size_t index, const Param& param, const Vector& values) {
    const TensorView w = make(DType::f32, param.shape, values);
    weights_.resize(std::max(weights_.size(), index + 1));
    scales_.resize(weights_.size());
    transposed_.resize(weights_.size());
    weights_[index] = w;
    if (quantizer_ == nullptr) return;
    const Flat flat("w", {.gathered = DType::f8e4m3, .scaled = true, .transposed = true}, {param});
    const std::int64_t parts = param.gemm_matrices(), rows = param.shape[0] / parts, columns = param.shape[1];
    const TensorView amax = make(DType::f32, {flat.scale_count()}), scale = make(DType::f32, {flat.scale_count()}),
                     q = make(DType::f8e4m3, param.shape), elements = w.reshape({w.elements()});
    const TensorView transposed = make(DType::f8e4m3, {parts * columns, rows});
    quantizer_->measure(compute(), {.flat = flat, .values = elements}, amax);
    quantizer_->weight_scales(compute(), flat, amax, scale);
    quantizer_->quantize_weights(compute(), {.flat = flat, .values = elements}, scale, q.reshape({w.elements()}));
    ops::transpose(compute(),
                   {.x = q.reshape({parts, rows, columns}), .y = transposed.reshape({parts, columns, rows})});
    finish();
    weights_[index] = q, scales_[index] = scale, transposed_[index] = transposed;
  }

  bool records_only_ = false;
  std::vector<TensorView> amaxes_;
  TensorView scale_, saturated_;
  mutable std::int64_t elements_ = 0;

 private:
  const Quantizer* quantizer_;
};

// Whole numbers up to 3 times a power of two: E4M3 and E5M2 numbers.
Vector integers(const std::string& name, std::int64_t count) {
  Vector values = normals(name, count);
  for (double& value : values) value = std::clamp(std::round(2 * value), -3.0, 3.0);
  return values;
}

constexpr std::int64_t kExperts = 4, kIn = 16, kOut = 32, kPieceRows = 384;

struct Products {
  std::vector<Vector> y, dx;  // by piece, of the rows that there are
  Vector dw;
  Vector amaxes;
};

// Two pieces of two experts, in which other rows are NaN. The experts' weights differ by powers of two.
Products products(const Quantizer* quantizer, bool records_only) {
  const auto device = make_cpu_device({.threads = 1});
  Fp8Context ctx(*device, quantizer);
  ctx.records_only_ = records_only;
  for (int i = 0; i < kOperands; ++i) ctx.amaxes_.push_back(ctx.make(DType::f32, {1}, {0}));
  Param param = full_param("w", {kExperts * kOut, kIn}, {}, true);
  param.matrices = kExperts;
  Vector w = integers("w", param.elements());
  for (std::size_t i = 0; i < w.size(); ++i) w[i] *= std::exp2(static_cast<double>(i / (kOut * kIn)));
  ctx.set_weight(0, param, w);
  TokenExchange::Routing routing;
  routing.sizes = {
      .tokens = 300, .per_token = 2, .experts = kExperts, .local_experts = kExperts, .options = {.pieces = 2}};
  routing.expert_offsets = ctx.make(DType::i32, {2, 3}, {0, 128, 256, 0, 0, 128});
  const std::int64_t used[] = {256, 128};
  const ExpertGemms experts(ctx, routing);
  const TensorView dw = ctx.make(DType::f32, {kExperts, kOut, kIn}, Vector(static_cast<std::size_t>(w.size()), 1));
  Products out;
  for (int p = 0; p < 2; ++p) {
    const auto rows_of = [&](const char* name, std::int64_t columns) {
      Vector values = integers(cat(name, p), kPieceRows * columns);
      for (auto i = static_cast<std::size_t>(used[p] * columns); i < values.size(); ++i) values[i] = NAN;
      return ctx.make(DType::f32, {kPieceRows, columns}, values);
    };
    const TensorView x = rows_of("x", kIn), dy = rows_of("dy", kOut), y = ctx.make(DType::f32, {kPieceRows, kOut}),
                     dx = ctx.make(DType::f32, {kPieceRows, kIn});
    const auto read = [&](Operand operand, const TensorView& rows, Linear::ReadBy by) {
      return experts.quantized(p, Site::up_projection, operand, rows, by);
    };
    using By = Linear::ReadBy;
    experts.multiply(p, 0, read(Operand::x, x, By::product), y, false);
    experts.multiply(p, 0, read(Operand::dy, dy, By::product), dx, true);
    experts.weight_gradient(p, read(Operand::dy, dy, By::weight_gradient), read(Operand::x, x, By::weight_gradient), dw,
                            true);
    ctx.finish();
    out.y.push_back(get(y.rows(0, used[p])));
    out.dx.push_back(get(dx.rows(0, used[p])));
  }
  out.dw = get(dw);
  for (const TensorView& amax : ctx.amaxes_) out.amaxes.push_back(get(amax)[0]);
  return out;
}

// All numbers are FP8 numbers times powers of two: FP8 changes no bit, and neither do rows in float32 beside weights in
// FP8.
TEST(Fp8Experts, ExactNumbersHaveTheBitsOfFloat32) {
  const Fp8Scaling quantizer({.power_of_two = true});
  const Products plain = products(nullptr, false);
  for (const bool records_only : {false, true}) {
    const Products fp8 = products(&quantizer, records_only);
    EXPECT_EQ(fp8.y, plain.y) << records_only;
    EXPECT_EQ(fp8.dx, plain.dx) << records_only;
    EXPECT_EQ(fp8.dw, plain.dw) << records_only;
    EXPECT_EQ(fp8.amaxes, (Vector{3, 3})) << records_only;
  }
}

// Of the rows that there are, beside as many elements as the assignments of tokens have: the rest of a piece, which may
// be many times larger, does not lower the share.
TEST(Fp8Experts, CountSaturatedElementsOfTheirRows) {
  const auto device = make_cpu_device({.threads = 1});
  const Fp8Scaling quantizer({});
  Fp8Context ctx(*device, &quantizer);
  ctx.scale_ = ctx.make(DType::f32, {1}, {1.0 / 512});  // only zeros are in its range
  ctx.saturated_ = ctx.make(DType::f32, {1}, {0});
  TokenExchange::Routing routing;
  routing.sizes = {.tokens = 50, .per_token = 2, .experts = 2, .local_experts = 2};
  routing.expert_offsets = ctx.make(DType::i32, {1, 3}, {0, 128, 128});
  Vector values = integers("x", kPieceRows * kIn);
  for (std::size_t i = 100 * kIn; i < 128 * kIn; ++i) values[i] = 0;
  const auto count = std::ranges::count_if(values.begin(), values.begin() + 128 * kIn, [](double v) { return v != 0; });
  const ExpertGemms experts(ctx, routing);
  const TensorView rows = ctx.make(DType::f32, {kPieceRows, kIn}, values);
  experts.quantized(0, Site::up_projection, Operand::x, rows, Linear::ReadBy::product);
  experts.quantized(0, Site::up_projection, Operand::x, rows, Linear::ReadBy::weight_gradient);  // counts nothing
  ctx.finish();
  EXPECT_EQ(get(ctx.saturated_)[0], static_cast<double>(count));
  EXPECT_EQ(ctx.elements_, 50 * 2 * kIn);
}

// What FP8 changes of a layer is what its roundings may change, by relative errors of at most 2^-4 (E4M3) and 2^-3
// (E5M2), although each expert's weights are 2 times (gate and up) or 8 times (down) larger than those of the one
// before.
TEST(Fp8Experts, ALayerFollowsFloat32) {
  constexpr std::int64_t kRows = 200, kWidth = 16;
  MoeConfig config{.width = kWidth, .experts = 4, .top_k = 2, .inner = 32};
  config.norm = "norm", config.router = "router";
  config.gate = "experts.{}.gate", config.up = "experts.{}.up", config.down = "experts.{}.down";
  const MoeLayer layer(config, std::make_shared<RouterLoss>(config.loss()));
  const Fp8Scaling quantizer({});
  const Vector x = normals("x", kRows * kWidth), dy = normals("dy", kRows * kWidth);
  const auto run = [&](const SavePolicy& policy, const Quantizer* with) {
    const auto device = make_cpu_device({.threads = 1});
    Fp8Context ctx(*device, with);
    for (std::size_t i = 0; i < layer.params().size(); ++i) {
      const Param& param = layer.params()[i];
      Vector values = normals(param.name, param.elements(), 0.3, param.initial.kind == Initial::Kind::ones ? 1.0 : 0.0);
      const std::size_t size = values.size() / static_cast<std::size_t>(param.gemm_matrices());
      for (std::size_t k = 0; param.matrices > 0 && k < values.size(); ++k) {
        values[k] *= std::exp2((i == 3 ? 3 : 1) * (static_cast<double>(k / size) - 2));
      }
      if (param.of_linear) {
        ctx.set_weight(i, param, values);
      } else {
        ctx.weights_.push_back(ctx.make(DType::f32, param.shape, values));
      }
    }
    testing::set_batch(ctx, {{kRows}}, 2);
    TestSink sink(ctx, layer.params());
    testing::LayerRun layer_run(ctx, layer, kWidth, policy, x, dy);
    layer_run.run(sink, [](Pass) {});
    return layer_run.result(sink);
  };
  const auto part = [](const Vector& all, std::size_t parts, std::size_t index) {
    const std::size_t size = all.size() / parts;
    return Vector(all.begin() + static_cast<std::ptrdiff_t>(index * size),
                  all.begin() + static_cast<std::ptrdiff_t>((index + 1) * size));
  };
  for (const SavePolicy& policy :
       {SavePolicy{}, SavePolicy{Checkpointing::selective}, SavePolicy{Checkpointing::full, true}}) {
    const testing::LayerResult exact = run(policy, nullptr), fp8 = run(policy, &quantizer);
    const auto expect_near = [&](const Vector& got, const Vector& expected, const std::string& what) {
      EXPECT_LT(distance(got, expected), 0.15) << what << ", " << testing::text(policy);
      EXPECT_GT(distance(got, expected), 0.005) << what << ", " << testing::text(policy);
    };
    Vector y = fp8.y, exact_y = exact.y;
    for (std::size_t i = 0; i < y.size(); ++i) y[i] -= x[i], exact_y[i] -= x[i];
    expect_near(y, exact_y, "y");
    for (const std::size_t p : {2, 3}) {
      for (std::size_t e = 0; e < 4; ++e) {
        expect_near(part(fp8.gradients[p], 4, e), part(exact.gradients[p], 4, e),
                    cat("gradient ", p, " of expert ", e));
      }
    }
    Vector dx = fp8.dx, exact_dx = exact.dx;
    for (std::size_t i = 0; i < dx.size(); ++i) dx[i] -= dy[i], exact_dx[i] -= dy[i];
    expect_near(dx, exact_dx, "dx");
  }
}

}  // namespace fp8_experts_test
}  // namespace hawser::nn
