#include "nn/blocks/linear.h"

#include "ops/bias/add_bias.h"
#include "ops/copy/add.h"
#include "ops/gemm/gemm.h"

namespace hawser::nn {

namespace {

TensorView bias_of(const LayerContext& ctx, int bias) {
  return bias >= 0 ? ctx.weight(bias) : TensorView();
}

void parameter_gradients(LayerContext& ctx, const TensorView& dy, const TensorView& x, GradientSink& sink, int weight,
                         int bias) {
  if (const GradientTarget target = sink.target(weight); !target.view.empty()) {
    gemm(ctx, {.a = dy, .b = x, .c = target.view, .transpose_a = true, .accumulate = target.accumulate});
  }
  if (bias < 0) return;
  if (const GradientTarget target = sink.target(bias); !target.view.empty()) {
    ops::bias_gradient(ctx.compute(), {.dy = dy, .db = target.view, .accumulate = target.accumulate});
  }
}

}  // namespace

void ColumnParallelLinear::forward(LayerContext& ctx, const TensorView& x, const TensorView& y) const {
  const Weight& weight = ctx.parameter(weight_);
  gemm(ctx, {.a = ctx.seams().redistribute->forward(ctx, Boundary::column_input, x),
             .b = weight.view,
             .c = y,
             .transpose_b = true,
             .bias = bias_of(ctx, bias_),
             .scale = weight.scale});
}

TensorView ColumnParallelLinear::input_gradient(LayerContext& ctx, const TensorView& dy, const TensorView& dx) const {
  const Weight& weight = ctx.parameter(weight_);
  gemm(ctx, {.a = dy, .b = weight.view, .c = dx, .scale = weight.scale});
  return ctx.seams().redistribute->backward(ctx, Boundary::column_input, dx);
}

void ColumnParallelLinear::weight_gradient(LayerContext& ctx, const TensorView& dy, const TensorView& x,
                                           GradientSink& sink) const {
  parameter_gradients(ctx, dy, ctx.seams().redistribute->forward(ctx, Boundary::column_input, x), sink, weight_, bias_);
}

void RowParallelLinear::forward(LayerContext& ctx, const TensorView& x, const TensorView& residual,
                                const TensorView& y) const {
  const Weight& weight = ctx.parameter(weight_);
  gemm(ctx, {.a = x, .b = weight.view, .c = y, .transpose_b = true, .scale = weight.scale});
  const TensorView sum = ctx.seams().redistribute->forward(ctx, Boundary::row_output, y);
  ops::add(ctx.compute(), {.a = sum, .b = residual, .y = sum});
  if (bias_ >= 0) ops::add_bias(ctx.compute(), {.y = sum, .bias = ctx.weight(bias_)});
}

TensorView RowParallelLinear::output_gradient(LayerContext& ctx, const TensorView& dy) const {
  return ctx.seams().redistribute->backward(ctx, Boundary::row_output, dy);
}

void RowParallelLinear::input_gradient(LayerContext& ctx, const TensorView& dz, const TensorView& dx) const {
  const Weight& weight = ctx.parameter(weight_);
  gemm(ctx, {.a = dz, .b = weight.view, .c = dx, .scale = weight.scale});
}

void RowParallelLinear::weight_gradient(LayerContext& ctx, const TensorView& dz, const TensorView& x,
                                        GradientSink& sink) const {
  parameter_gradients(ctx, dz, x, sink, weight_, bias_);
}

void gemm(LayerContext& ctx, const Gemm& p) {
  ops::Gemm gemm{.a = p.a,
                 .b = p.b,
                 .c = p.c,
                 .transpose_a = p.transpose_a,
                 .transpose_b = p.transpose_b,
                 .accumulate = p.accumulate,
                 .bias = p.bias,
                 .scale = p.scale};
  const std::int64_t bytes = ops::gemm_workspace(gemm, ctx.compute().target());
  if (bytes > 0) gemm.workspace = ctx.temp(DType::u8, {bytes});
  ops::gemm(ctx.compute(), gemm);
}

}  // namespace hawser::nn
