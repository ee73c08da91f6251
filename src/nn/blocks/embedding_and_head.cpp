#include "nn/blocks/embedding_and_head.h"

#include "ops/embedding/embedding.h"
#include "ops/loss/linear_cross_entropy.h"

namespace hawser::nn {

EmbeddingLayer::EmbeddingLayer(EmbeddingConfig config) : config_(std::move(config)) {
  params_.push_back(full_param(config_.table + ".weight", {config_.vocabulary, config_.width},
                               {Initial::Kind::normal, config_.initial_std}, true));
}

void EmbeddingLayer::forward(LayerContext& ctx, const TensorView& y) const {
  ops::embedding_forward(ctx.compute(), {.ids = ctx.batch().ids, .table = ctx.weight(0), .y = y});
}

void EmbeddingLayer::backward(LayerContext& ctx, const TensorView& dy, GradientSink& sink) const {
  const GradientTarget target = sink.target(0);
  if (target.view.empty()) return;
  ops::embedding_backward(ctx.compute(),
                          {.ids = ctx.batch().ids, .dy = dy, .dtable = target.view, .accumulate = target.accumulate});
}

HeadLayer::HeadLayer(HeadConfig config) : config_(std::move(config)), norm_(0, config_.epsilon) {
  params_.push_back(replicated_param(config_.norm + ".weight", {config_.width}, {Initial::Kind::ones, 0}));
  if (!config_.tied) {
    params_.push_back(full_param(config_.output + ".weight", {config_.vocabulary, config_.width},
                                 {Initial::Kind::normal, config_.initial_std}, true));
  }
}

TensorView HeadLayer::normed(LayerContext& ctx, const TensorView& x, const TensorView& rstd) const {
  const TensorView y = ctx.temp(ctx.dtype(), x.shape());
  norm_.forward(ctx, x, y, rstd);
  return y;
}

namespace {

void cross_entropy(LayerContext& ctx, ops::LinearCrossEntropy call) {
  const std::int64_t bytes = ops::linear_cross_entropy_workspace(call, ctx.compute().target());
  if (bytes > 0) call.workspace = ctx.temp(DType::u8, {bytes});
  ops::linear_cross_entropy(ctx.compute(), call);
}

}  // namespace

void HeadLayer::loss(LayerContext& ctx, const TensorView& x, const LossViews& views) const {
  const TensorView h = normed(ctx, x, ctx.temp(DType::f32, {x.size(0)}));
  cross_entropy(ctx, {.x = h,
                      .weight = ctx.weight(1),
                      .labels = ctx.batch().labels,
                      .scale = views.inverse_targets,
                      .loss_sum = views.sum});
}

void HeadLayer::loss_and_gradient(LayerContext& ctx, const TensorView& x, const TensorView& dx, const LossViews& views,
                                  GradientSink& sink) const {
  const TensorView rstd = ctx.temp(DType::f32, {x.size(0)});
  const TensorView h = normed(ctx, x, rstd);
  const TensorView dh = ctx.temp(ctx.dtype(), x.shape());
  const GradientTarget weight = sink.target(1);
  cross_entropy(ctx, {.x = h,
                      .weight = ctx.weight(1),
                      .labels = ctx.batch().labels,
                      .scale = views.inverse_targets,
                      .loss_sum = views.sum,
                      .dx = dh,
                      .dweight = weight.view,
                      .accumulate_weight = weight.accumulate});
  norm_.backward(ctx, x, rstd, dh, TensorView(), dx, sink);
}

void HeadLayer::logits(LayerContext& ctx, const TensorView& x, const TensorView& logits) const {
  const TensorView h = normed(ctx, x, ctx.temp(DType::f32, {x.size(0)}));
  gemm(ctx, {.a = h, .b = ctx.weight(1), .c = logits, .transpose_b = true});
}

double HeadLayer::flops(std::int64_t rows) const {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(config_.width * config_.vocabulary);
}

}  // namespace hawser::nn
