// Shapes: T rows, C width, F inner width.
#include "nn/blocks/mlp_layer.h"

#include "ops/activation/swiglu.h"

namespace hawser::nn {

namespace {
enum MlpParameter { kMlpNorm, kGateUpWeight, kDownWeight, kGateUpBias, kDownBias };
}

MlpLayer::MlpLayer(MlpConfig config)
    : config_(std::move(config)),
      norm_(kMlpNorm, config_.epsilon),
      gate_up_(kGateUpWeight, config_.bias ? kGateUpBias : -1),
      down_(kDownWeight, config_.bias ? kDownBias : -1) {
  const MlpConfig& c = config_;
  const auto gate_up = [&](const char* suffix, const Shape& shape) {
    return std::vector<Segment>{row_segment(c.gate + suffix, 0, c.inner, shape, c.inner_part),
                                row_segment(c.up + suffix, c.inner, c.inner, shape, c.inner_part)};
  };
  const Shape wide{2 * c.inner, c.width};
  params_.push_back(replicated_param(c.norm + ".weight", {c.width}, {Initial::Kind::ones, 0}));
  params_.push_back(
      fused_param(c.fused + ".weight", gate_up(".weight", wide), wide, {Initial::Kind::normal, c.initial_std}, true));
  params_.push_back(sliced_param(c.down + ".weight", {c.width, c.inner}, 1, c.inner_part,
                                 {Initial::Kind::normal, c.output_std}, true));
  if (c.bias) {
    params_.push_back(fused_param(c.fused + ".bias", gate_up(".bias", {2 * c.inner}), {2 * c.inner}, {}, false));
    params_.push_back(replicated_param(c.down + ".bias", {c.width}, {}));
  }
}

std::array<TensorSpec, MlpLayer::kSavedCount> MlpLayer::tensors(std::int64_t rows, DType dtype) const {
  const MlpConfig& c = config_;
  return {{{"rstd", DType::f32, {rows}},
           {"normed", dtype, {rows, c.width}},
           {"gate_up", dtype, {rows, 2 * c.inner}},
           {"inner", dtype, {rows, c.inner}},
           {"dgate_up", dtype, {rows, 2 * c.inner}}}};
}

std::vector<SavedSpec> MlpLayer::saved_specs(std::int64_t rows, DType dtype, const SavePolicy& policy) const {
  const auto all = tensors(rows, dtype);
  const bool again = policy.recomputes_gate_up(), delayed = policy.delay_weight_gradients;
  const Pass weight_reader = delayed ? Pass::backward_weight : Pass::backward;
  SavedSpec inner = unsaved_spec(all[kInner]);
  if (!policy.recomputes_pointwise()) {
    inner = saved_spec(all[kInner], Pass::forward, weight_reader);
  } else if (delayed) {  // backward recomputes it
    inner = saved_spec(all[kInner], Pass::backward, weight_reader);
  }
  return {rstd_spec(all[kRstd], policy, again), normed_spec(all[kNormed], policy, again),
          saved_spec(all[kGateUp], again ? Pass::recompute : Pass::forward, Pass::backward), inner,
          output_gradient_spec(all[kDgateUp], policy)};
}

TensorView MlpLayer::saved_or_temp(LayerContext& ctx, const Saved& saved, SavedIndex index) const {
  return nn::saved_or_temp(ctx, saved, index, tensors(saved.x.size(0), ctx.dtype())[index]);
}

void MlpLayer::forward(LayerContext& ctx, const TensorView& x, const TensorView& residual, const TensorView& y,
                       const Saved& saved) const {
  const TensorView rstd = saved_or_temp(ctx, saved, kRstd), normed = saved_or_temp(ctx, saved, kNormed);
  norm_.forward(ctx, x, normed, rstd);
  const TensorView gate_up = saved_or_temp(ctx, saved, kGateUp);
  gate_up_.forward(ctx, normed, gate_up);
  const TensorView inner = saved_or_temp(ctx, saved, kInner);
  ops::swiglu_forward(ctx.compute(), {.gate_up = gate_up, .y = inner});
  down_.forward(ctx, inner, residual, y);
}

void MlpLayer::recompute(LayerContext& ctx, const Saved& saved, const SavePolicy&) const {
  const TensorView normed = saved_or_temp(ctx, saved, kNormed);
  norm_.forward(ctx, saved.x, normed, saved_or_temp(ctx, saved, kRstd));
  gate_up_.forward(ctx, normed, saved_or_temp(ctx, saved, kGateUp));
}

void MlpLayer::backward(LayerContext& ctx, const TensorView& dy, const TensorView& dresidual, const TensorView& dx,
                        const Saved& saved, GradientSink& sink, const SavePolicy& policy) const {
  const std::int64_t rows = saved.x.size(0);
  const TensorView rstd = saved.tensors[kRstd], gate_up = saved.tensors[kGateUp];
  const TensorView dz = down_.output_gradient(ctx, dy);
  const TensorView dinner = ctx.temp(ctx.dtype(), {rows, config_.inner});
  down_.input_gradient(ctx, dz, dinner);
  const bool inner_kept = !policy.recomputes_pointwise();
  // Recomputed inner activations overwrite dinner, which has no other reader.
  const TensorView inner = saved.tensors[kInner].empty() ? dinner : saved.tensors[kInner];
  // Without delayed weight gradients gate and up have no later reader: their gradient overwrites them.
  const TensorView dgate_up = policy.delay_weight_gradients ? saved.tensors[kDgateUp] : gate_up;
  ops::swiglu_backward(
      ctx.compute(), {.gate_up = gate_up, .dy = dinner, .dgate_up = dgate_up, .y = inner_kept ? TensorView() : inner});
  if (!policy.delay_weight_gradients) {
    down_.weight_gradient(ctx, dz, inner, sink);
    gate_up_.weight_gradient(ctx, dgate_up, norm_.again(ctx, saved.x, rstd, saved.tensors[kNormed]), sink);
  }
  const TensorView dnormed = gate_up_.input_gradient(ctx, dgate_up, ctx.temp(ctx.dtype(), {rows, config_.width}));
  norm_.backward(ctx, saved.x, rstd, dnormed, dresidual, dx, sink);
}

void MlpLayer::backward_weight(LayerContext& ctx, const TensorView& dy, const Saved& saved, GradientSink& sink) const {
  down_.weight_gradient(ctx, down_.output_gradient(ctx, dy), saved.tensors[kInner], sink);
  const TensorView normed = norm_.again(ctx, saved.x, saved.tensors[kRstd], saved.tensors[kNormed]);
  gate_up_.weight_gradient(ctx, saved.tensors[kDgateUp], normed, sink);
}

double MlpLayer::flops(std::int64_t rows, double) const {
  return 6.0 * static_cast<double>(rows * config_.width) * static_cast<double>(config_.inner);
}

}  // namespace hawser::nn
