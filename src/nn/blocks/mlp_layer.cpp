// Shapes: T rows, C width, F inner width.
#include "nn/blocks/mlp_layer.h"

#include "nn/blocks/block_support.h"
#include "ops/activation/swiglu.h"
#include "ops/norm/rms_norm.h"

namespace hawser::nn {

namespace {
enum MlpParameter { kMlpNorm, kGateUpWeight, kDownWeight };
}

MlpLayer::MlpLayer(MlpConfig config) : config_(std::move(config)) {
  const MlpConfig& c = config_;
  const auto slices = [&](const char* suffix) {
    return std::vector<FusedSlice>{{c.gate + suffix, 0, c.inner}, {c.up + suffix, c.inner, c.inner}};
  };
  params_.push_back(full_param(c.norm + ".weight", {c.width}, {Initial::Kind::ones, 0}, false));
  params_.push_back(fused_param(c.fused + ".weight", slices(".weight"), {2 * c.inner, c.width},
                                {Initial::Kind::normal, c.initial_std}, true));
  params_.push_back(full_param(c.down + ".weight", {c.width, c.inner}, {Initial::Kind::normal, c.output_std}, true));
  if (c.bias) {
    gate_up_bias_ = static_cast<int>(params_.size());
    params_.push_back(fused_param(c.fused + ".bias", slices(".bias"), {2 * c.inner}, {}, false));
    down_bias_ = static_cast<int>(params_.size());
    params_.push_back(full_param(c.down + ".bias", {c.width}, {}, false));
  }
}

std::vector<SavedSpec> MlpLayer::saved_specs(std::int64_t rows, DType dtype, const SavePolicy& policy) const {
  const MlpConfig& c = config_;
  const bool again = policy.recomputes_gate_up(), all = !policy.recomputes_pointwise();
  const Pass weight_reader = policy.delay_weight_gradients ? Pass::backward_weight : Pass::backward;
  std::vector<SavedSpec> specs(kSavedCount, unsaved_spec(""));
  specs[kRstd] = rstd_spec(policy, again, rows);
  specs[kNormed] = normed_spec(policy, again, dtype, {rows, c.width});
  specs[kGateUp] =
      saved_spec("gate_up", dtype, {rows, 2 * c.inner}, again ? Pass::recompute : Pass::forward, Pass::backward);
  specs[kInner] = unsaved_spec("inner");
  if (all) specs[kInner] = saved_spec("inner", dtype, {rows, c.inner}, Pass::forward, weight_reader);
  // Backward recomputes the inner activations; a delayed weight gradient needs them saved.
  if (!all && policy.delay_weight_gradients)
    specs[kInner] = saved_spec("inner", dtype, {rows, c.inner}, Pass::backward, weight_reader);
  specs[kDgateUp] = policy.delay_weight_gradients
                        ? saved_spec("dgate_up", dtype, {rows, 2 * c.inner}, Pass::backward, Pass::backward_weight)
                        : unsaved_spec("dgate_up");
  return specs;
}

TensorView MlpLayer::saved_or_temp(LayerContext& ctx, const Saved& saved, SavedIndex index) const {
  if (!saved.tensors[index].empty()) return saved.tensors[index];
  const std::int64_t rows = saved.x.size(0);
  switch (index) {
    case kRstd:
      return ctx.temp(DType::f32, {rows});
    case kNormed:
      return ctx.temp(ctx.dtype(), {rows, config_.width});
    case kGateUp:
    case kDgateUp:
      return ctx.temp(ctx.dtype(), {rows, 2 * config_.inner});
    case kInner:
      return ctx.temp(ctx.dtype(), {rows, config_.inner});
    case kSavedCount:
      break;
  }
  HAWSER_CHECK(false, "no such saved tensor");
}

void MlpLayer::norm(LayerContext& ctx, const TensorView& x, const TensorView& normed, const TensorView& rstd) const {
  ops::rms_norm_forward(
      ctx.compute(), {.x = x, .weight = ctx.weight(kMlpNorm), .y = normed, .rstd = rstd, .epsilon = config_.epsilon});
}

void MlpLayer::project(LayerContext& ctx, const TensorView& normed, const TensorView& gate_up) const {
  gemm(ctx, {.a = ctx.seams().redistribute->forward(ctx, Boundary::column_input, normed),
             .b = ctx.weight(kGateUpWeight),
             .c = gate_up,
             .transpose_b = true,
             .bias = gate_up_bias_ >= 0 ? ctx.weight(gate_up_bias_) : TensorView()});
}

void MlpLayer::forward(LayerContext& ctx, const TensorView& x, const TensorView& y, const Saved& saved) const {
  const TensorView rstd = saved_or_temp(ctx, saved, kRstd), normed = saved_or_temp(ctx, saved, kNormed);
  norm(ctx, x, normed, rstd);
  const TensorView gate_up = saved_or_temp(ctx, saved, kGateUp);
  project(ctx, normed, gate_up);
  const TensorView inner = saved_or_temp(ctx, saved, kInner);
  ops::swiglu_forward(ctx.compute(), {.gate_up = gate_up, .y = inner});
  gemm(ctx, {.a = inner, .b = ctx.weight(kDownWeight), .c = y, .transpose_b = true});
  add_residual(ctx, x, ctx.seams().redistribute->forward(ctx, Boundary::row_output, y),
               down_bias_ >= 0 ? ctx.weight(down_bias_) : TensorView());
}

void MlpLayer::recompute(LayerContext& ctx, const Saved& saved, const SavePolicy&) const {
  const TensorView normed = saved_or_temp(ctx, saved, kNormed);
  norm(ctx, saved.x, normed, saved_or_temp(ctx, saved, kRstd));
  project(ctx, normed, saved_or_temp(ctx, saved, kGateUp));
}

TensorView MlpLayer::gemm_input(LayerContext& ctx, const Saved& saved) const {
  TensorView normed = saved.tensors[kNormed];
  if (normed.empty()) {
    normed = ctx.temp(ctx.dtype(), {saved.x.size(0), config_.width});
    norm(ctx, saved.x, normed, saved.tensors[kRstd]);
  }
  return ctx.seams().redistribute->forward(ctx, Boundary::column_input, normed);
}

void MlpLayer::backward(LayerContext& ctx, const TensorView& dy, const TensorView& dx, const Saved& saved,
                        GradientSink& sink, const SavePolicy& policy) const {
  const std::int64_t rows = saved.x.size(0);
  const TensorView rstd = saved.tensors[kRstd], gate_up = saved.tensors[kGateUp];
  const TensorView dz = ctx.seams().redistribute->backward(ctx, Boundary::row_output, dy);
  const TensorView dinner = ctx.temp(ctx.dtype(), {rows, config_.inner});
  gemm(ctx, {.a = dz, .b = ctx.weight(kDownWeight), .c = dinner});
  const bool inner_kept = !policy.recomputes_pointwise();
  // Recomputed inner activations overwrite dinner, which has no other reader.
  const TensorView inner = saved.tensors[kInner].empty() ? dinner : saved.tensors[kInner];
  // Without delayed weight gradients gate and up have no later reader: their gradient overwrites them.
  const TensorView dgate_up = policy.delay_weight_gradients ? saved.tensors[kDgateUp] : gate_up;
  ops::swiglu_backward(
      ctx.compute(), {.gate_up = gate_up, .dy = dinner, .dgate_up = dgate_up, .y = inner_kept ? TensorView() : inner});
  if (!policy.delay_weight_gradients) {
    linear_weight_gradient(ctx, dz, inner, sink, kDownWeight, down_bias_);
    linear_weight_gradient(ctx, dgate_up, gemm_input(ctx, saved), sink, kGateUpWeight, gate_up_bias_);
  }
  const TensorView dnormed = ctx.temp(ctx.dtype(), {rows, config_.width});
  gemm(ctx, {.a = dgate_up, .b = ctx.weight(kGateUpWeight), .c = dnormed});
  rms_norm_gradient(ctx, saved.x, ctx.weight(kMlpNorm), rstd,
                    ctx.seams().redistribute->backward(ctx, Boundary::column_input, dnormed), dy, dx,
                    sink.target(kMlpNorm));
}

void MlpLayer::backward_weight(LayerContext& ctx, const TensorView& dy, const Saved& saved, GradientSink& sink) const {
  linear_weight_gradient(ctx, ctx.seams().redistribute->backward(ctx, Boundary::row_output, dy), saved.tensors[kInner],
                         sink, kDownWeight, down_bias_);
  linear_weight_gradient(ctx, saved.tensors[kDgateUp], gemm_input(ctx, saved), sink, kGateUpWeight, gate_up_bias_);
}

double MlpLayer::flops(std::int64_t rows, double) const {
  return 6.0 * static_cast<double>(rows * config_.width) * static_cast<double>(config_.inner);
}

}  // namespace hawser::nn
