#include "nn/row_tiles.h"

#include <algorithm>
#include <functional>
#include <map>

#include "ops/copy/copy.h"

namespace hawser::nn {

namespace {

TensorView rows_of(const TensorView& view, std::int64_t first, std::int64_t count) {
  return view.empty() ? view : view.rows(first, count);
}

// Rows [first, first + count) of the residual as if they were all.
class TileContext : public LayerContext {
 public:
  TileContext(LayerContext& all, std::int64_t first, std::int64_t count)
      : all_(all), first_(all.rows().first + first), count_(count), batch_(all.batch()) {
    batch_.token_mask = rows_of(batch_.token_mask, first_, count);
    batch_.row_ids = rows_of(batch_.row_ids, first_, count);
  }
  TensorView temp(DType dtype, const Shape& shape) override { return all_.temp(dtype, shape); }
  Stream& compute() override { return all_.compute(); }
  Stream& exchange() override { return all_.exchange(); }
  const BatchViews& batch() const override { return batch_; }
  RowCounts rows() const override { return {count_, count_, 0}; }
  const Seams& seams() const override { return all_.seams(); }
  const Scaled& parameter(int param) const override { return all_.parameter(param); }
  RopeViews rope(int i) const override { return all_.rope(i); }
  TensorView alibi_slopes() const override { return all_.alibi_slopes(); }
  const TrainableParams& trainable() const override { return all_.trainable(); }
  DType dtype() const override { return all_.dtype(); }
  int threads() const override { return all_.threads(); }
  bool deterministic() const override { return all_.deterministic(); }
  bool training() const override { return all_.training(); }
  ops::RandomKey random(Site site, int index) const override {
    ops::RandomKey key = all_.random(site, index);
    key.rows = rows_of(key.rows, first_, count_);
    return key;
  }
  Quantization quantization(Site site, Operand operand) const override { return all_.quantization(site, operand); }
  KvCache kv_cache() const override { return all_.kv_cache(); }
  AuxiliaryViews auxiliary() const override { return all_.auxiliary(); }
  TensorView refusal() const override { return all_.refusal(); }

 private:
  LayerContext& all_;
  std::int64_t first_, count_;
  BatchViews batch_;
};

// Sums the gradients of all tiles in float32.
class TileSink : public GradientSink {
 public:
  TileSink(LayerContext& ctx, GradientSink& all) : ctx_(ctx), all_(all) {}

  GradientTarget target(int param) override {
    const auto [sum, first] = sums_.try_emplace(param);
    if (first) sum->second = begin(param);
    const GradientTarget out = sum->second;
    sum->second.accumulate = true;
    return out;
  }
  // After the last tile.
  void finish() {
    for (const auto& [param, whole] : rounded_) ops::cast(ctx_.compute(), {.x = sums_.at(param).view, .y = whole});
  }

 private:
  GradientTarget begin(int param) {
    const GradientTarget whole = all_.target(param);
    if (whole.view.empty() || whole.view.dtype() == DType::f32) return whole;
    rounded_.emplace(param, whole.view);
    const TensorView sum = ctx_.temp(DType::f32, whole.view.shape());
    if (whole.accumulate) ops::cast(ctx_.compute(), {.x = whole.view, .y = sum});
    return {sum, whole.accumulate};
  }

  LayerContext& ctx_;
  GradientSink& all_;
  std::map<int, GradientTarget> sums_;  // by parameter: what the next tile gets
  std::map<int, TensorView> rounded_;   // the targets whose sums are temporaries
};

void for_each_tile(std::int64_t rows, std::int64_t tile_rows,
                   const std::function<void(std::int64_t, std::int64_t)>& call) {
  for (std::int64_t first = 0; first < rows; first += tile_rows) call(first, std::min(tile_rows, rows - first));
}

// Of one tile.
SavePolicy policy_of_tile(SavePolicy policy) {
  policy.checkpointing = Checkpointing::full;
  policy.tile_rows = 0;
  policy.offload = false;
  return policy;
}

// Computes what backward of a tile reads, in temporaries.
Saved recompute(const Layer& layer, LayerContext& ctx, const TensorView& x, const TensorView& residual,
                const SavePolicy& policy) {
  Saved saved{.x = x};
  bool of_forward = false;  // recompute does not write all
  for (const SavedSpec& spec : layer.saved_specs(ctx.rows(), ctx.dtype(), policy, ctx.trainable(), ctx.seams())) {
    const bool there = spec.shape.rank() > 0;
    saved.tensors.push_back(there ? ctx.temp(spec.dtype, spec.shape) : TensorView());
    of_forward |= there && spec.writer == Pass::forward;
  }
  if (of_forward) {
    layer.forward(ctx, x, residual, ctx.temp(ctx.dtype(), x.shape()), saved);
  } else if (recomputes(layer, policy, ctx.trainable())) {
    layer.recompute(ctx, saved, {}, policy);
  }
  return saved;
}

Saved nothing_saved(const Layer& layer, LayerContext& ctx, const SavePolicy& policy) {
  const auto specs = layer.saved_specs(ctx.rows(), ctx.dtype(), policy, ctx.trainable(), ctx.seams());
  return {.x = {}, .tensors = std::vector<TensorView>(specs.size())};
}

}  // namespace

bool in_tiles(const Layer& layer, const SavePolicy& policy) {
  return policy.tile_rows > 0 && layer.has_independent_rows();
}

std::vector<SavedSpec> saved_specs_of(const Layer& layer, const RowCounts& rows, DType dtype, const SavePolicy& policy,
                                      const TrainableParams& trainable, const Seams& seams) {
  std::vector<SavedSpec> specs = layer.saved_specs(rows, dtype, policy, trainable, seams);
  if (!in_tiles(layer, policy)) return specs;
  for (SavedSpec& spec : specs) spec = {spec.name, spec.dtype, Shape(), Pass::forward, Pass::forward};
  return specs;
}

void run_forward(const Layer& layer, LayerContext& ctx, const TensorView& x, const TensorView& residual,
                 const TensorView& y, const Saved& saved, const SavePolicy& policy) {
  if (!in_tiles(layer, policy)) return layer.forward(ctx, x, residual, y, saved);
  const Saved none = nothing_saved(layer, ctx, policy);
  for_each_tile(x.size(0), policy.tile_rows, [&](std::int64_t first, std::int64_t count) {
    TileContext tile(ctx, first, count);
    layer.forward(tile, x.rows(first, count), residual.rows(first, count), y.rows(first, count), none);
  });
}

void run_backward(const Layer& layer, LayerContext& ctx, const TensorView& dy, const TensorView& dresidual,
                  const TensorView& dx, const Saved& saved, GradientSink& sink, const SavePolicy& policy) {
  if (!in_tiles(layer, policy)) return layer.backward(ctx, dy, dresidual, dx, saved, sink, policy);
  HAWSER_CHECK(!policy.delay_weight_gradients, "delayed gradients of weights of a layer in tiles");
  const SavePolicy of_tile = policy_of_tile(policy);
  TileSink sums(ctx, sink);
  for_each_tile(dy.size(0), policy.tile_rows, [&](std::int64_t first, std::int64_t count) {
    TileContext tile(ctx, first, count);
    const TensorView x = saved.x.rows(first, count);
    const Saved again = recompute(layer, tile, x, x, of_tile);  // of a parallel block: its y is not used
    layer.backward(tile, dy.rows(first, count), dresidual.rows(first, count), dx.rows(first, count), again, sums,
                   of_tile);
  });
  sums.finish();
}

}  // namespace hawser::nn
