#include "nn/blocks/block_support.h"

#include <algorithm>

#include "ops/bias/add_bias.h"
#include "ops/copy/add.h"
#include "ops/gemm/gemm.h"
#include "ops/norm/rms_norm.h"

namespace hawser::nn {

void gemm(LayerContext& ctx, const Gemm& p) {
  ops::Gemm gemm{.a = p.a,
                 .b = p.b,
                 .c = p.c,
                 .transpose_a = p.transpose_a,
                 .transpose_b = p.transpose_b,
                 .accumulate = p.accumulate,
                 .bias = p.bias};
  const std::int64_t bytes = ops::gemm_workspace(gemm, ctx.compute().target());
  if (bytes > 0) gemm.workspace = ctx.temp(DType::u8, {bytes});
  ops::gemm(ctx.compute(), gemm);
}

void linear_weight_gradient(LayerContext& ctx, const TensorView& dy, const TensorView& x, GradientSink& sink,
                            int weight, int bias) {
  if (const GradientTarget target = sink.target(weight); !target.view.empty()) {
    gemm(ctx, {.a = dy, .b = x, .c = target.view, .transpose_a = true, .accumulate = target.accumulate});
  }
  if (bias < 0) return;
  if (const GradientTarget target = sink.target(bias); !target.view.empty()) {
    ops::bias_gradient(ctx.compute(), {.dy = dy, .db = target.view, .accumulate = target.accumulate});
  }
}

void rms_norm_gradient(LayerContext& ctx, const TensorView& x, const TensorView& weight, const TensorView& rstd,
                       const TensorView& dy, const TensorView& residual_gradient, const TensorView& dx,
                       const GradientTarget& dweight) {
  const std::int64_t bytes = ops::rms_norm_backward_workspace(x.size(0), x.size(1));
  ops::rms_norm_backward(ctx.compute(), {.x = x,
                                         .weight = weight,
                                         .rstd = rstd,
                                         .dy = dy,
                                         .residual_gradient = residual_gradient,
                                         .dx = dx,
                                         .dweight = dweight.view,
                                         .accumulate_weight = dweight.accumulate,
                                         .workspace = bytes > 0 ? ctx.temp(DType::u8, {bytes}) : TensorView()});
}

void add_residual(LayerContext& ctx, const TensorView& x, const TensorView& y, const TensorView& bias) {
  ops::add(ctx.compute(), {.a = y, .b = x, .y = y});
  if (!bias.empty()) ops::add_bias(ctx.compute(), {.y = y, .bias = bias});
}

SavedSpec normed_spec(const SavePolicy& policy, bool recomputed, DType dtype, const Shape& shape) {
  const Pass weight_reader = policy.delay_weight_gradients ? Pass::backward_weight : Pass::backward;
  if (!policy.recomputes_pointwise()) return saved_spec("normed", dtype, shape, Pass::forward, weight_reader);
  if (recomputed && !policy.delay_weight_gradients)
    return saved_spec("normed", dtype, shape, Pass::recompute, Pass::backward);
  return unsaved_spec("normed");
}

SavedSpec rstd_spec(const SavePolicy& policy, bool recomputed, std::int64_t rows) {
  const bool read_late = policy.recomputes_pointwise() && policy.delay_weight_gradients;
  return saved_spec("rstd", DType::f32, {rows}, recomputed ? Pass::recompute : Pass::forward,
                    read_late ? Pass::backward_weight : Pass::backward);
}

bool recomputes(const Layer& layer, const SavePolicy& policy) {
  const std::vector<SavedSpec> specs = layer.saved_specs(1, DType::f32, policy);
  return std::any_of(specs.begin(), specs.end(),
                     [](const SavedSpec& spec) { return spec.shape.rank() > 0 && spec.writer == Pass::recompute; });
}

SavedSpec saved_spec(const char* name, DType dtype, const Shape& shape, Pass writer, Pass last_reader) {
  return {name, dtype, shape, writer, last_reader};
}

SavedSpec unsaved_spec(const char* name) {
  return {name, DType::u8, Shape(), Pass::forward, Pass::forward};
}

}  // namespace hawser::nn
