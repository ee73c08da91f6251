#include "nn/blocks/norm.h"

#include "ops/norm/rms_norm.h"

namespace hawser::nn {

void RmsNorm::forward(LayerContext& ctx, const TensorView& x, const TensorView& y, const TensorView& rstd) const {
  ops::rms_norm_forward(ctx.compute(),
                        {.x = x, .weight = ctx.weight(weight_), .y = y, .rstd = rstd, .epsilon = epsilon_});
}

TensorView RmsNorm::again(LayerContext& ctx, const TensorView& x, const TensorView& rstd,
                          const TensorView& saved) const {
  if (!saved.empty()) return saved;
  const TensorView y = ctx.temp(ctx.dtype(), x.shape());
  forward(ctx, x, y, rstd);
  return y;
}

void RmsNorm::backward(LayerContext& ctx, const TensorView& x, const TensorView& rstd, const TensorView& dy,
                       const TensorView& residual_gradient, const TensorView& dx, GradientSink& sink) const {
  const GradientTarget dweight = sink.target(weight_);
  const std::int64_t bytes = ops::rms_norm_backward_workspace(x.size(0), x.size(1));
  ops::rms_norm_backward(ctx.compute(), {.x = x,
                                         .weight = ctx.weight(weight_),
                                         .rstd = rstd,
                                         .dy = dy,
                                         .residual_gradient = residual_gradient,
                                         .dx = dx,
                                         .dweight = dweight.view,
                                         .accumulate_weight = dweight.accumulate,
                                         .workspace = bytes > 0 ? ctx.temp(DType::u8, {bytes}) : TensorView()});
}

}  // namespace hawser::nn
