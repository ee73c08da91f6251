#include "nn/blocks/layer_output.h"

#include "ops/copy/add.h"

namespace hawser::nn {

std::array<TensorSpec, LayerOutput::kTensors> LayerOutput::tensors(const RowCounts& rows, std::int64_t width,
                                                                   DType dtype) const {
  const std::int64_t own = rows.residual;
  return {{{"projected", dtype, {own, width}},
           {"post_norm_statistics", DType::f32, has_norm() ? norm_->statistics(own) : Shape{own}},
           {"dprojected", dtype, {own, width}},
           adapters_tensor("output_adapters", linear(), rows, dtype)}};
}

std::array<SavedSpec, LayerOutput::kTensors> LayerOutput::saved_specs(const RowCounts& rows, std::int64_t width,
                                                                      DType dtype, const SavePolicy& policy,
                                                                      const TrainableParams& trainable,
                                                                      bool recomputed) const {
  const auto all = tensors(rows, width, dtype);
  const SavedSpec adapters = adapters_spec(all[3], policy, false, linear(), trainable);
  if (!has_norm()) return {unsaved_spec(all[0]), unsaved_spec(all[1]), unsaved_spec(all[2]), adapters};
  return {saved_spec(all[0], recomputed ? Pass::recompute : Pass::forward, Pass::backward),
          saved_spec(all[1], Pass::forward, Pass::backward),
          output_gradient_spec(all[2], policy, linear().has_gradients(trainable)), adapters};
}

void LayerOutput::forward(LayerContext& ctx, const Scaled& x, const TensorView& residual, const TensorView& y,
                          const Tensors& tensors) const {
  if (!has_norm()) return linear_.forward(ctx, x, residual, y, tensors.inner);
  linear_.forward(ctx, x, norms_sum_ ? residual : TensorView(), tensors.z, tensors.inner);
  norm_->forward(ctx, tensors.z, y, tensors.statistics);
  if (!norms_sum_) ops::add(ctx.compute(), {.a = y, .b = residual, .y = y});
}

void LayerOutput::recompute(LayerContext& ctx, const Scaled& x, const TensorView& residual,
                            const Tensors& tensors) const {
  linear_.forward(ctx, x, norms_sum_ ? residual : TensorView(), tensors.z);
}

RowParallelLinear::OutputGradient LayerOutput::backward(LayerContext& ctx, const TensorView& dy, const Tensors& tensors,
                                                        const TensorView& dx, GradientSink& sink, bool delayed) const {
  if (has_norm()) norm_->backward(ctx, tensors.z, tensors.statistics, dy, TensorView(), tensors.dz, sink);
  return linear_.input_gradient(ctx, has_norm() ? tensors.dz : dy, dx, delayed);
}

Scaled LayerOutput::output_gradient(LayerContext& ctx, const TensorView& dy, const Tensors& tensors) const {
  return linear_.input_gradient(ctx, has_norm() ? tensors.dz : dy, {}, true).dy;
}

}  // namespace hawser::nn
