#include "nn/blocks/embedding_and_head.h"

#include <algorithm>

#include "nn/blocks/row_sum.h"
#include "ops/bias/add_bias.h"
#include "ops/copy/add.h"
#include "ops/copy/copy.h"
#include "ops/embedding/embedding.h"
#include "ops/loss/linear_cross_entropy.h"
#include "ops/loss/softcap.h"

namespace hawser::nn {

namespace {

// Of the micro-batch's rows, those that this rank has of the residual `x`.
TensorView residual_rows(const LayerContext& ctx, const TensorView& x, const TensorView& of_all) {
  return of_all.rows(ctx.rows().first, x.size(0));
}

}  // namespace

EmbeddingLayer::EmbeddingLayer(EmbeddingConfig config) : config_(std::move(config)) {
  const Initial initial{Initial::Kind::normal, config_.initial_std};
  params_.push_back(sliced_param(config_.table + ".weight", {config_.vocabulary, config_.width}, 0,
                                 config_.vocabulary_part, initial, true));
  if (!config_.positions.empty()) {
    params_.push_back(
        partial_param(config_.positions + ".weight", {config_.max_position, config_.width}, initial, true));
  }
  if (!sliced()) std::ranges::for_each(params_, set_unsliced);
}

// Rows [first_row, first_row + rows of y) of the micro-batch.
void EmbeddingLayer::look_up(LayerContext& ctx, const TensorView& y, std::int64_t first_row) const {
  const std::int64_t rows = y.size(0);
  ops::embedding_forward(ctx.compute(), {.ids = ctx.batch().ids.rows(first_row, rows),
                                         .table = ctx.weight(0),
                                         .y = y,
                                         .scale = config_.scale,
                                         .first_row = config_.vocabulary_part.begin,
                                         .total_rows = config_.vocabulary_part.total});
  if (config_.positions.empty() || config_.vocabulary_part.begin > 0) return;
  const TensorView positions = ctx.temp(ctx.dtype(), y.shape());
  ops::embedding_forward(ctx.compute(), {.ids = ctx.batch().positions.rows(first_row, rows),
                                         .table = ctx.weight(1),
                                         .y = positions,
                                         .scale = config_.scale});
  ops::add(ctx.compute(), {.a = y, .b = positions, .y = y});
}

void EmbeddingLayer::forward(LayerContext& ctx, const TensorView& y) const {
  if (!sliced()) return look_up(ctx, y, ctx.rows().first);
  write_row_sum(ctx, *ctx.seams().redistribute, y, {},
                [&](const TensorView& rows, std::int64_t first) { look_up(ctx, rows, first); });
}

void EmbeddingLayer::backward(LayerContext& ctx, const TensorView& dy, GradientSink& sink) const {
  const auto gather = sliced() ? ctx.seams().redistribute->gather(ctx, dy) : nullptr;
  const TensorView rows = gather != nullptr ? gather->all().view : dy;
  const auto of_rows = [&](const TensorView& of_all) { return sliced() ? of_all : residual_rows(ctx, dy, of_all); };
  if (const GradientTarget table = sink.target(0); !table.view.empty()) {
    ops::embedding_backward(ctx.compute(), {.ids = of_rows(ctx.batch().ids),
                                            .dy = rows,
                                            .dtable = table.view,
                                            .accumulate = table.accumulate,
                                            .scale = config_.scale,
                                            .first_row = config_.vocabulary_part.begin,
                                            .total_rows = config_.vocabulary_part.total});
  }
  if (!config_.positions.empty()) position_gradient(ctx, of_rows(ctx.batch().positions), rows, sink.target(1));
  if (gather != nullptr) gather->finish();
}

void EmbeddingLayer::position_gradient(LayerContext& ctx, const TensorView& ids, const TensorView& dy,
                                       const GradientTarget& target) const {
  if (target.view.empty()) return;
  if (config_.vocabulary_part.begin == 0) {
    ops::embedding_backward(
        ctx.compute(),
        {.ids = ids, .dy = dy, .dtable = target.view, .accumulate = target.accumulate, .scale = config_.scale});
  } else if (!target.accumulate) {
    ops::fill(ctx.compute(), {.y = target.view});
  }
}

namespace {

enum HeadParameter { kHeadNorm, kProjection, kHeadNormBias };

}  // namespace

HeadLayer::HeadLayer(HeadConfig config, const std::string& table)
    : config_(std::move(config)), norm_(config_.norm_config, kHeadNorm, kHeadNormBias) {
  HAWSER_CHECK(!config_.tied || !table.empty(), config_.output, ": tied to no table");
  params_.push_back(norm_weight(config_.norm, config_.width, config_.norm_config));
  params_.push_back(sliced_param((config_.tied ? table : config_.output) + ".weight",
                                 {config_.vocabulary, config_.width}, 0, config_.vocabulary_part,
                                 {Initial::Kind::normal, config_.initial_std}, true));
  if (!sliced()) set_unsliced(params_.back());
  params_.back().shared = config_.tied;
  if (config_.norm_config.bias) params_.push_back(norm_bias(config_.norm, config_.width));
  if (!config_.bias) return;
  bias_ = static_cast<int>(params_.size());
  params_.push_back(sliced_param(config_.output + ".bias", {config_.vocabulary}, 0, config_.vocabulary_part,
                                 {Initial::Kind::zeros}, false));
  if (!sliced()) set_unsliced(params_.back());
}

Linear HeadLayer::projection() {
  return {.site = Site::logits, .weight = kProjection};
}

TensorView HeadLayer::bias(const LayerContext& ctx) const {
  return bias_ >= 0 ? ctx.weight(bias_) : TensorView();
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
  if (sliced()) {
    return sliced_loss(ctx, {projection(), config_.vocabulary_part, bias(ctx), config_.softcap}, h, {}, views, {});
  }
  cross_entropy(ctx, {.x = h,
                      .weight = ctx.weight(kProjection),
                      .bias = bias(ctx),
                      .labels = residual_rows(ctx, x, ctx.batch().labels),
                      .scale = views.inverse_targets,
                      .loss_sum = views.sum,
                      .softcap = config_.softcap});
}

void HeadLayer::loss_and_gradient(LayerContext& ctx, const TensorView& x, const TensorView& dx, const LossViews& views,
                                  GradientSink& sink) const {
  const TensorView statistics = ctx.temp(DType::f32, norm_.statistics(x.size(0)));
  const TensorView h = normed(ctx, x, statistics);
  const TensorView dh = ctx.temp(ctx.dtype(), x.shape());
  const GradientTarget weight = sink.target(kProjection);
  const GradientTarget dbias = bias_ >= 0 ? sink.target(bias_) : GradientTarget();
  if (sliced()) {
    sliced_loss(ctx, {projection(), config_.vocabulary_part, bias(ctx), config_.softcap}, h, dh, views,
                {weight, dbias});
  } else {
    cross_entropy(ctx, {.x = h,
                        .weight = ctx.weight(kProjection),
                        .bias = bias(ctx),
                        .labels = residual_rows(ctx, x, ctx.batch().labels),
                        .scale = views.inverse_targets,
                        .loss_sum = views.sum,
                        .dx = dh,
                        .dweight = weight.view,
                        .dbias = dbias.view,
                        .accumulate_weight = weight.accumulate,
                        .accumulate_bias = dbias.accumulate,
                        .softcap = config_.softcap});
  }
  norm_.backward(ctx, x, statistics, dh, TensorView(), dx, sink);
}

void HeadLayer::project(LayerContext& ctx, const TensorView& h, const TensorView& logits) const {
  projection().forward(ctx, h, logits);
  if (bias_ >= 0) ops::add_bias(ctx.compute(), {.y = logits, .bias = bias(ctx)});
  if (config_.softcap > 0) ops::softcap(ctx.compute(), {.y = logits, .softcap = config_.softcap});
}

void HeadLayer::logits(LayerContext& ctx, const TensorView& x, const TensorView& logits) const {
  const TensorView h = normed(ctx, x, ctx.temp(DType::f32, norm_.statistics(x.size(0))));
  if (!sliced()) return project(ctx, h, logits);
  const std::int64_t rows = x.size(0), own = config_.vocabulary, total = config_.vocabulary_part.total;
  const TensorView part = ctx.temp(DType::f32, {rows, own});
  project(ctx, h, part);
  const TensorView all = ctx.temp(DType::f32, {(total + own - 1) / own * rows, own});
  ctx.seams().tensor_reduce->gather(ctx, part, all);
  for (std::int64_t begin = 0; begin < total; begin += own) {
    const std::int64_t columns = std::min(own, total - begin);
    ops::copy(ctx.compute(),
              {.x = all.rows(begin / own * rows, rows).columns(0, columns), .y = logits.columns(begin, columns)});
  }
}

double HeadLayer::flops(const RowCounts& rows) const {
  return 2.0 * static_cast<double>(sliced() ? rows.full : rows.residual) *
         static_cast<double>(config_.width * config_.vocabulary);
}

}  // namespace hawser::nn
