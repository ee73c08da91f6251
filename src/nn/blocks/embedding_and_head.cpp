#include "nn/blocks/embedding_and_head.h"

#include "ops/copy/add.h"
#include "ops/embedding/embedding.h"
#include "ops/loss/linear_cross_entropy.h"

namespace hawser::nn {

EmbeddingLayer::EmbeddingLayer(EmbeddingConfig config) : config_(std::move(config)) {
  params_.push_back(full_param(config_.table + ".weight", {config_.vocabulary, config_.width},
                               {Initial::Kind::normal, config_.initial_std}, true));
  if (config_.positions.empty()) return;
  params_.push_back(full_param(config_.positions + ".weight", {config_.max_position, config_.width},
                               {Initial::Kind::normal, config_.initial_std}, true));
}

void EmbeddingLayer::forward(LayerContext& ctx, const TensorView& y) const {
  ops::embedding_forward(ctx.compute(),
                         {.ids = ctx.batch().ids, .table = ctx.weight(0), .y = y, .scale = config_.scale});
  if (config_.positions.empty()) return;
  const TensorView positions = ctx.temp(ctx.dtype(), y.shape());
  ops::embedding_forward(
      ctx.compute(), {.ids = ctx.batch().positions, .table = ctx.weight(1), .y = positions, .scale = config_.scale});
  ops::add(ctx.compute(), {.a = y, .b = positions, .y = y});
}

void EmbeddingLayer::backward(LayerContext& ctx, const TensorView& dy, GradientSink& sink) const {
  const auto gradient = [&](int table, const TensorView& ids) {
    const GradientTarget target = sink.target(table);
    if (target.view.empty()) return;
    ops::embedding_backward(
        ctx.compute(),
        {.ids = ids, .dy = dy, .dtable = target.view, .accumulate = target.accumulate, .scale = config_.scale});
  };
  gradient(0, ctx.batch().ids);
  if (!config_.positions.empty()) gradient(1, ctx.batch().positions);
}

namespace {

enum HeadParameter { kHeadNorm, kProjection, kHeadNormBias };

}  // namespace

HeadLayer::HeadLayer(HeadConfig config, const std::string& table)
    : config_(std::move(config)), norm_(config_.norm_config, kHeadNorm, kHeadNormBias) {
  HAWSER_CHECK(!config_.tied || !table.empty(), config_.output, ": tied to no table");
  params_.push_back(norm_weight(config_.norm, config_.width, config_.norm_config));
  params_.push_back(full_param((config_.tied ? table : config_.output) + ".weight", {config_.vocabulary, config_.width},
                               {Initial::Kind::normal, config_.initial_std}, true));
  params_.back().shared = config_.tied;
  if (config_.norm_config.bias) params_.push_back(norm_bias(config_.norm, config_.width));
}

TensorView HeadLayer::normed(LayerContext& ctx, const TensorView& x, const TensorView& statistics) const {
  const TensorView y = ctx.temp(ctx.dtype(), x.shape());
  norm_.forward(ctx, x, y, statistics);
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
  const TensorView h = normed(ctx, x, ctx.temp(DType::f32, norm_.statistics(x.size(0))));
  cross_entropy(ctx, {.x = h,
                      .weight = ctx.weight(kProjection),
                      .labels = ctx.batch().labels,
                      .scale = views.inverse_targets,
                      .loss_sum = views.sum});
}

void HeadLayer::loss_and_gradient(LayerContext& ctx, const TensorView& x, const TensorView& dx, const LossViews& views,
                                  GradientSink& sink) const {
  const TensorView statistics = ctx.temp(DType::f32, norm_.statistics(x.size(0)));
  const TensorView h = normed(ctx, x, statistics);
  const TensorView dh = ctx.temp(ctx.dtype(), x.shape());
  const GradientTarget weight = sink.target(kProjection);
  cross_entropy(ctx, {.x = h,
                      .weight = ctx.weight(kProjection),
                      .labels = ctx.batch().labels,
                      .scale = views.inverse_targets,
                      .loss_sum = views.sum,
                      .dx = dh,
                      .dweight = weight.view,
                      .accumulate_weight = weight.accumulate});
  norm_.backward(ctx, x, statistics, dh, TensorView(), dx, sink);
}

void HeadLayer::logits(LayerContext& ctx, const TensorView& x, const TensorView& logits) const {
  const TensorView h = normed(ctx, x, ctx.temp(DType::f32, norm_.statistics(x.size(0))));
  Linear{.site = Site::logits, .weight = kProjection}.forward(ctx, h, logits);
}

double HeadLayer::flops(std::int64_t rows) const {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(config_.width * config_.vocabulary);
}

}  // namespace hawser::nn
