#include "nn/blocks/norm.h"

#include "ops/norm/layer_norm.h"
#include "ops/norm/rms_norm.h"

namespace hawser::nn {

Norm::Norm(NormConfig config, int weight, int bias) : config_(config), weight_(weight), bias_(config.bias ? bias : -1) {
  HAWSER_CHECK(config.kind == NormKind::layer || !config.bias, "an RMS norm with a bias");
  HAWSER_CHECK(config.kind == NormKind::rms || !config.unit_offset, "a layer norm with a unit offset");
}

Shape Norm::statistics(std::int64_t rows) const {
  return config_.kind == NormKind::rms ? Shape{rows} : Shape{2, rows};
}

void Norm::forward(LayerContext& ctx, const TensorView& x, const TensorView& y, const TensorView& statistics,
                   const ops::Fp8Output& fp8) const {
  if (config_.kind == NormKind::rms) {
    ops::rms_norm_forward(ctx.compute(), {.x = x,
                                          .weight = ctx.weight(weight_),
                                          .y = y,
                                          .rstd = statistics,
                                          .epsilon = config_.epsilon,
                                          .unit_offset = config_.unit_offset,
                                          .fp8 = fp8});
    return;
  }
  HAWSER_CHECK(fp8.empty(), "a layer norm in FP8");
  ops::layer_norm_forward(ctx.compute(), {.x = x,
                                          .weight = ctx.weight(weight_),
                                          .bias = bias_ >= 0 ? ctx.weight(bias_) : TensorView(),
                                          .y = y,
                                          .statistics = statistics,
                                          .epsilon = config_.epsilon});
}

TensorView Norm::again(LayerContext& ctx, const TensorView& x, const TensorView& statistics,
                       const TensorView& saved) const {
  if (!saved.empty()) return saved;
  const TensorView y = ctx.temp(ctx.dtype(), x.shape());
  forward(ctx, x, y, statistics);
  return y;
}

void Norm::backward(LayerContext& ctx, const TensorView& x, const TensorView& statistics, const TensorView& dy,
                    const TensorView& residual_gradient, const TensorView& dx, GradientSink& sink) const {
  const GradientTarget dweight = sink.target(weight_);
  if (config_.kind == NormKind::layer) {
    const GradientTarget dbias = bias_ >= 0 ? sink.target(bias_) : GradientTarget();
    ops::layer_norm_backward(ctx.compute(), {.x = x,
                                             .weight = ctx.weight(weight_),
                                             .statistics = statistics,
                                             .dy = dy,
                                             .residual_gradient = residual_gradient,
                                             .dx = dx,
                                             .dweight = dweight.view,
                                             .dbias = dbias.view,
                                             .accumulate_weight = dweight.accumulate,
                                             .accumulate_bias = dbias.accumulate});
    return;
  }
  const std::int64_t channels = x.size(x.rank() - 1);
  const std::int64_t bytes =
      dweight.view.empty() ? 0 : ops::rms_norm_backward_workspace(x.elements() / channels, channels);
  ops::rms_norm_backward(ctx.compute(), {.x = x,
                                         .weight = ctx.weight(weight_),
                                         .rstd = statistics,
                                         .dy = dy,
                                         .residual_gradient = residual_gradient,
                                         .dx = dx,
                                         .dweight = dweight.view,
                                         .accumulate_weight = dweight.accumulate,
                                         .workspace = ctx.workspace(bytes),
                                         .unit_offset = config_.unit_offset});
}

namespace {

Param norm_param(const std::string& name, std::int64_t width, Initial initial) {
  Param param = replicated_param(name, {width}, initial);
  param.of_residual_rows = true;
  return param;
}

}  // namespace

Param norm_weight(const std::string& name, std::int64_t width, const NormConfig& config) {
  return norm_param(name + ".weight", width, {config.unit_offset ? Initial::Kind::zeros : Initial::Kind::ones, 0});
}

Param norm_bias(const std::string& name, std::int64_t width) {
  return norm_param(name + ".bias", width, {});
}

}  // namespace hawser::nn
