#include "nn/blocks/head_transform.h"

namespace hawser::nn {

HeadTransform::HeadTransform(const HeadTransformConfig& config, std::int64_t width, double initial_std,
                             std::vector<Param>& params)
    : width_(width), activation_(config.activation) {
  HAWSER_CHECK(!is_gated(activation_), config.dense, ": a gated activation");
  const auto add = [&](Param param) {
    params.push_back(std::move(param));
    return static_cast<int>(params.size()) - 1;
  };
  const auto add_unsliced = [&](Param param) {
    set_unsliced(param);
    return add(std::move(param));
  };
  // A head's Linears have no formats and no adapters, which the site is the key of.
  dense_ = {.site = Site::logits, .sliced = false};
  dense_.weight =
      add_unsliced(full_param(config.dense + ".weight", {width, width}, {Initial::Kind::normal, initial_std}, true));
  if (config.bias) dense_.bias = add_unsliced(full_param(config.dense + ".bias", {width}, {}, false));
  if (!config.norm_config) return;
  const int weight = add(norm_weight(config.norm, width, *config.norm_config));
  if (config.norm_config->bias) add(norm_bias(config.norm, width));
  norm_.emplace(*config.norm_config, weight, weight + 1);
}

HeadTransform::Tensors HeadTransform::forward(LayerContext& ctx, const TensorView& x) const {
  Tensors out{.f = x};
  if (norm_) {
    out.f = ctx.temp(ctx.dtype(), x.shape());
    out.statistics = ctx.temp(DType::f32, norm_->statistics(x.size(0)));
    norm_->forward(ctx, x, out.f, out.statistics);
  }
  out.dense = ctx.temp(ctx.dtype(), x.shape());
  out.y = ctx.temp(ctx.dtype(), x.shape());
  dense_.forward(ctx, out.f, out.dense);
  activate(ctx, activation_, out.dense, out.y);
  return out;
}

void HeadTransform::backward(LayerContext& ctx, const TensorView& x, const Tensors& tensors, const TensorView& dy,
                             const TensorView& dx, GradientSink& sink) const {
  const TensorView ddense = ctx.temp(ctx.dtype(), x.shape());
  activate_backward(ctx, activation_, tensors.dense, dy, ddense, TensorView());
  dense_.weight_gradient(ctx, ddense, tensors.f, sink);
  if (!norm_) return dense_.input_gradient(ctx, ddense, dx);
  const TensorView df = ctx.temp(ctx.dtype(), x.shape());
  dense_.input_gradient(ctx, ddense, df);
  norm_->backward(ctx, x, tensors.statistics, df, TensorView(), dx, sink);
}

double HeadTransform::flops(std::int64_t rows) const {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(width_ * width_);
}

}  // namespace hawser::nn
