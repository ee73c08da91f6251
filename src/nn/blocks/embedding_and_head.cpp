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
                                 config_.vocabulary_slice, initial, true));
  const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t first, bool of_types) {
    HAWSER_CHECK(first >= 0 && first < rows, name, ": ", rows, " rows, the first of which is ", first);
    more_.push_back({static_cast<int>(params_.size()), first, of_types});
    params_.push_back(partial_param(name + ".weight", {rows, config_.width}, initial, true));
  };
  if (!config_.positions.empty()) add(config_.positions, config_.max_position, config_.position_offset, false);
  if (!config_.types.empty()) add(config_.types, config_.type_count, 0, true);
  if (!sliced()) std::ranges::for_each(params_, set_unsliced);
  if (!config_.norm_config) return;
  const auto index = static_cast<int>(params_.size());
  norm_.emplace(*config_.norm_config, index, index + 1);
  params_.push_back(norm_weight(config_.norm, config_.width, *config_.norm_config));
  if (config_.norm_config->bias) params_.push_back(norm_bias(config_.norm, config_.width));
}

TensorView EmbeddingLayer::ids_of(LayerContext& ctx, const More& more, std::int64_t first_row,
                                  std::int64_t rows) const {
  if (!more.of_types) return ctx.batch().positions.rows(first_row, rows);
  if (config_.type_count > 1) return ctx.batch().table(kTokenTypes.name, kTokenTypes.dtype).rows(first_row, rows);
  const TensorView zeros = ctx.temp(DType::i32, {rows});
  ops::fill(ctx.compute(), {.y = zeros});
  return zeros;
}

// Rows [first_row, first_row + rows of s) of the micro-batch.
void EmbeddingLayer::look_up(LayerContext& ctx, const TensorView& s, std::int64_t first_row) const {
  const std::int64_t rows = s.size(0);
  ops::embedding_forward(ctx.compute(), {.ids = ctx.batch().ids.rows(first_row, rows),
                                         .table = ctx.weight(0),
                                         .y = s,
                                         .scale = config_.scale,
                                         .first_row = config_.vocabulary_slice.begin,
                                         .total_rows = config_.vocabulary_slice.total});
  for (const More& more : more_) {
    // All tensor ranks ask for the same temps.
    const TensorView ids = ids_of(ctx, more, first_row, rows), term = ctx.temp(ctx.dtype(), s.shape());
    if (!adds_more()) continue;
    const TensorView table = ctx.weight(more.param);
    ops::embedding_forward(
        ctx.compute(),
        {.ids = ids, .table = table.rows(more.first, table.size(0) - more.first), .y = term, .scale = config_.scale});
    ops::add(ctx.compute(), {.a = s, .b = term, .y = s});
  }
}

void EmbeddingLayer::sum(LayerContext& ctx, const TensorView& s) const {
  if (!sliced()) return look_up(ctx, s, ctx.rows().first);
  write_row_sum(ctx, *ctx.seams().redistribute, s, {},
                [&](const TensorView& rows, std::int64_t first) { look_up(ctx, rows, first); });
}

void EmbeddingLayer::forward(LayerContext& ctx, const TensorView& y) const {
  if (!norm_) return sum(ctx, y);
  const TensorView s = ctx.temp(ctx.dtype(), y.shape());
  sum(ctx, s);
  norm_->forward(ctx, s, y, ctx.temp(DType::f32, norm_->statistics(y.size(0))));
}

void EmbeddingLayer::norm_backward(LayerContext& ctx, const TensorView& dy, const TensorView& ds,
                                   GradientSink& sink) const {
  const TensorView s = ctx.temp(ctx.dtype(), dy.shape());
  const TensorView statistics = ctx.temp(DType::f32, norm_->statistics(dy.size(0)));
  sum(ctx, s);
  norm_->forward(ctx, s, ds, statistics);  // for the statistics
  norm_->backward(ctx, s, statistics, dy, TensorView(), ds, sink);
}

void EmbeddingLayer::backward(LayerContext& ctx, const TensorView& dy, GradientSink& sink) const {
  const TensorView ds = norm_ ? ctx.temp(ctx.dtype(), dy.shape()) : dy;
  if (norm_) norm_backward(ctx, dy, ds, sink);
  const auto gather = sliced() ? ctx.seams().redistribute->gather(ctx, ds, Redistribute::Rows::together) : nullptr;
  const TensorView rows = gather != nullptr ? gather->all().view : ds;
  const std::int64_t first_row = sliced() ? 0 : ctx.rows().first;
  if (const GradientTarget table = sink.target(0); !table.view.empty()) {
    ops::embedding_backward(ctx.compute(), {.ids = ctx.batch().ids.rows(first_row, rows.size(0)),
                                            .dy = rows,
                                            .dtable = table.view,
                                            .accumulate = table.accumulate,
                                            .scale = config_.scale,
                                            .first_row = config_.vocabulary_slice.begin,
                                            .total_rows = config_.vocabulary_slice.total});
  }
  for (const More& more : more_) add_gradient(ctx, more, rows, first_row, sink.target(more.param));
  if (gather != nullptr) gather->finish();
}

void EmbeddingLayer::add_gradient(LayerContext& ctx, const More& more, const TensorView& ds, std::int64_t first_row,
                                  const GradientTarget& target) const {
  const TensorView& table = target.view;
  if (table.empty()) return;
  const std::int64_t without = adds_more() ? more.first : table.size(0);  // rows that get no gradient
  if (!target.accumulate && without > 0) ops::fill(ctx.compute(), {.y = table.rows(0, without)});
  const TensorView ids = ids_of(ctx, more, first_row, ds.size(0));
  if (!adds_more()) return;
  ops::embedding_backward(ctx.compute(), {.ids = ids,
                                          .dy = ds,
                                          .dtable = table.rows(more.first, table.size(0) - more.first),
                                          .accumulate = target.accumulate,
                                          .scale = config_.scale});
}

const char* to_string(HeadKind kind) {
  constexpr const char* kTexts[] = {"language modeling", "masked language modeling", "sequence classification",
                                    "token classification"};
  return kTexts[static_cast<int>(kind)];
}

LabelSpec labels_of(const HeadConfig& config) {
  switch (config.kind) {
    case HeadKind::language_model:
      break;
    case HeadKind::masked_language_model: {
      const std::int64_t total = config.vocabulary_slice.total;
      return {LabelRows::own, total > 0 ? total : config.vocabulary};
    }
    case HeadKind::token_classification:
      return {LabelRows::own, config.classes};
    case HeadKind::sequence_classification:
      return {config.last_row ? LabelRows::last : LabelRows::first, config.classes};
  }
  return {};
}

HeadLayer::HeadLayer(HeadConfig config, const std::string& table) : config_(std::move(config)) {
  HAWSER_CHECK(!config_.tied || !table.empty(), config_.output, ": tied to no table");
  HAWSER_CHECK(!config_.classifies() || (!config_.tied && !sliced()), config_.output,
               ": classes of a tied or sliced projection");
  if (!config_.norm.empty()) params_.push_back(norm_weight(config_.norm, config_.width, config_.norm_config));
  projection_ = static_cast<int>(params_.size());
  params_.push_back(sliced_param((config_.tied ? table : config_.output) + ".weight",
                                 {config_.columns(), config_.width}, 0, config_.vocabulary_slice,
                                 {Initial::Kind::normal, config_.initial_std}, true));
  if (!sliced()) set_unsliced(params_.back());
  params_.back().shared = config_.tied;
  if (!config_.norm.empty()) {
    norm_.emplace(config_.norm_config, 0, static_cast<int>(params_.size()));
    if (config_.norm_config.bias) params_.push_back(norm_bias(config_.norm, config_.width));
  }
  if (config_.transform) transform_.emplace(*config_.transform, config_.width, config_.initial_std, params_);
  if (!config_.bias) return;
  bias_ = static_cast<int>(params_.size());
  params_.push_back(sliced_param(config_.output + ".bias", {config_.columns()}, 0, config_.vocabulary_slice,
                                 {Initial::Kind::zeros}, false));
  if (!sliced()) set_unsliced(params_.back());
}

HeadTransform::Tensors HeadLayer::transformed(LayerContext& ctx, const TensorView& x) const {
  return transform_ ? transform_->forward(ctx, x) : HeadTransform::Tensors{.y = x};
}

TensorView HeadLayer::bias(const LayerContext& ctx) const {
  return bias_ >= 0 ? ctx.weight(bias_) : TensorView();
}

TensorView HeadLayer::statistics(LayerContext& ctx, const TensorView& x) const {
  return norm_ ? ctx.temp(DType::f32, norm_->statistics(x.size(0))) : TensorView();
}

TensorView HeadLayer::normed(LayerContext& ctx, const TensorView& x, const TensorView& statistics) const {
  if (!norm_) return x;
  const TensorView y = ctx.temp(ctx.dtype(), x.shape());
  norm_->forward(ctx, x, y, statistics);
  return y;
}

void HeadLayer::cross_entropy(LayerContext& ctx, const TensorView& x, const TensorView& h, const TensorView& dh,
                              const LossViews& views, const ProjectionGradients& gradients) const {
  if (sliced()) {
    return sliced_loss(ctx, {projection(), config_.vocabulary_slice, bias(ctx), config_.softcap}, h, dh, views,
                       gradients);
  }
  ops::LinearCrossEntropy call{.x = h,
                               .weight = ctx.weight(projection_),
                               .bias = bias(ctx),
                               .labels = residual_rows(ctx, x, ctx.batch().labels),
                               .scale = views.inverse_targets,
                               .loss_sum = views.sum,
                               .dx = dh,
                               .dweight = gradients.weight.view,
                               .dbias = gradients.bias.view,
                               .accumulate_weight = gradients.weight.accumulate,
                               .accumulate_bias = gradients.bias.accumulate,
                               .softcap = config_.softcap.value_or(0)};
  call.workspace = ctx.workspace(ops::linear_cross_entropy_workspace(call, ctx.compute().target()));
  ops::linear_cross_entropy(ctx.compute(), call);
}

void HeadLayer::loss(LayerContext& ctx, const TensorView& x, const LossViews& views) const {
  cross_entropy(ctx, x, normed(ctx, transformed(ctx, x).y, statistics(ctx, x)), {}, views, {});
}

void HeadLayer::loss_and_gradient(LayerContext& ctx, const TensorView& x, const TensorView& dx, const LossViews& views,
                                  GradientSink& sink) const {
  const TensorView of_norm = statistics(ctx, x);
  const HeadTransform::Tensors inner = transformed(ctx, x);
  const TensorView h = normed(ctx, inner.y, of_norm);
  const TensorView dh = norm_ || transform_ ? ctx.temp(ctx.dtype(), x.shape()) : dx;
  const GradientTarget weight = sink.target(projection_);
  const GradientTarget dbias = bias_ >= 0 ? sink.target(bias_) : GradientTarget();
  cross_entropy(ctx, x, h, dh, views, {weight, dbias});
  TensorView dinner = dh;
  if (norm_) {
    dinner = transform_ ? ctx.temp(ctx.dtype(), x.shape()) : dx;
    norm_->backward(ctx, inner.y, of_norm, dh, TensorView(), dinner, sink);
  }
  if (transform_) transform_->backward(ctx, x, inner, dinner, dx, sink);
}

void HeadLayer::project(LayerContext& ctx, const TensorView& h, const TensorView& logits) const {
  projection().forward(ctx, h, logits);
  if (bias_ >= 0) ops::add_bias(ctx.compute(), {.y = logits, .bias = bias(ctx)});
  if (config_.softcap) ops::softcap(ctx.compute(), {.y = logits, .softcap = *config_.softcap});
}

void HeadLayer::logits(LayerContext& ctx, const TensorView& x, const TensorView& logits) const {
  const TensorView h = normed(ctx, transformed(ctx, x).y, statistics(ctx, x));
  if (!sliced()) return project(ctx, h, logits);
  const std::int64_t rows = x.size(0), own = config_.vocabulary, total = config_.vocabulary_slice.total;
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
             static_cast<double>(config_.width * config_.columns()) +
         (transform_ ? transform_->flops(rows.residual) : 0.0);
}

}  // namespace hawser::nn
