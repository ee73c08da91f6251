// Shapes: T local rows, S = context * T rows in sequence order, K key-value heads of a group, D head dim.
#include "parallel/context/all_gather_exchange.h"

#include <algorithm>

#include "nn/layer.h"
#include "ops/copy/add.h"
#include "ops/copy/copy.h"
#include "ops/copy/permute_rows.h"

namespace hawser::parallel {

namespace {

using nn::AttentionPart;
using nn::LayerContext;

// One group of key-value heads that is gathered over the context group.
struct HeadGroup {
  int begin = 0, count = 0;
  TensorView k, v;  // [S, K, D] in sequence order
  Event arrived;
  TensorView dk, dv;   // [S, K, D] reduce_dtype, backward
  TensorView reduced;  // [2, T, K * D] float32: this rank's rows of dk and dv
};

class GatherCall : public nn::AttentionExchange::Call {
 public:
  GatherCall(LayerContext& ctx, const AttentionMask& mask, comm::Group& group, int head_groups, DType reduce_dtype,
             const nn::AttentionTensors& tensors)
      : ctx_(ctx),
        mask_(mask),
        diagonal_(mask.causal ? 1 : 0),
        group_(group),
        reduce_dtype_(reduce_dtype),
        tensors_(tensors),
        rows_(tensors.k.size(0)),
        head_dim_(tensors.k.size(2)) {
    if (mask.causal && mask.window == 1) return;  // every query sees its own key only
    const int heads = static_cast<int>(tensors.k.size(1));
    int groups = std::min(head_groups, heads);
    while (heads % groups != 0) --groups;
    ctx.exchange_after_compute();
    for (int g = 0; g < groups; ++g) {
      HeadGroup head_group{.begin = g * (heads / groups), .count = heads / groups};
      gather(head_group);
      groups_.push_back(std::move(head_group));
    }
  }

  int parts() const override { return diagonal_ + static_cast<int>(groups_.size()); }

  AttentionPart wait(int p) override {
    const nn::BatchViews& batch = ctx_.batch();
    const nn::MaskViews& views = batch.with_mask(mask_);
    if (p < diagonal_) {
      return {.tensors = tensors_,
              .segments = batch.diagonal,
              .segment_count = batch.diagonal_count,
              .form = ops::SegmentForm::diagonal,
              .blocks = nn::diagonal_blocks(batch, mask_, rows_),
              .host_segments = batch.host_diagonal,
              .mask = mask_,
              .query_ids = batch.attention_row_ids,
              .key_ids = batch.attention_row_ids,
              .visible = views.diagonal_pairs};
    }
    HeadGroup& g = groups_[static_cast<std::size_t>(p - diagonal_)];
    ctx_.compute().wait(g.arrived);
    if (tensors_.backward()) {
      g.dk = ctx_.temp(reduce_dtype_, g.k.shape());
      g.dv = ctx_.temp(reduce_dtype_, g.k.shape());
    }
    const bool halves = mask_.causal && mask_.window > 0 && batch.uniform_diagonal == 0;
    const bool disjoint = mask_.causal && batch.off_diagonal_disjoint_keys && !halves;
    nn::AttentionTensors tensors = tensors_.kv_heads(g.begin, g.count);
    tensors.k = g.k;
    tensors.v = g.v;
    tensors.dk = g.dk;
    tensors.dv = g.dv;
    return {.tensors = tensors,
            .segments = views.off_diagonal,
            .segment_count = views.off_diagonal_count,
            .form = disjoint ? ops::SegmentForm::disjoint_keys : ops::SegmentForm::any,
            .blocks = off_diagonal_blocks(group_.index(), group_.index()),
            .largest = off_diagonal_blocks(0, group_.size() - 1),
            .host_segments = views.host_off_diagonal,
            .window_halves = halves,
            .mask = {.causal = false, .window = mask_.window, .distances = mask_.distances},
            .first_head = g.begin * tensors_.query_heads_per_kv_head(),
            .query_ids = batch.attention_row_ids,
            .key_ids = batch.sequence_row_ids,
            .first = diagonal_ == 0,
            .visible = views.off_diagonal_pairs};
  }

  // Backward: scatters the part's dk and dv into gathered order and reduce-scatters each rank's rows over the group.
  void computed(int p) override {
    if (p < diagonal_ || !tensors_.backward()) return;
    HeadGroup& g = groups_[static_cast<std::size_t>(p - diagonal_)];
    const std::int64_t width = g.count * head_dim_, all = group_.size() * 2 * rows_;
    const TensorView send = ctx_.temp(reduce_dtype_, {all, width});
    ctx_.exchange_after_compute();
    const TensorView index = ctx_.batch().gather_index;
    const Shape flat{g.dk.size(0), width};
    ops::scatter_rows(ctx_.exchange(), {.x = g.dk.reshape(flat), .index = index, .y = send.rows(0, all - rows_)});
    ops::scatter_rows(ctx_.exchange(), {.x = g.dv.reshape(flat), .index = index, .y = send.rows(rows_, all - rows_)});
    g.reduced = ctx_.temp(DType::f32, {2 * rows_, width});
    const std::int64_t bytes =
        comm::reduce_scatter_workspace(g.reduced.elements(), reduce_dtype_, group_.size(), ctx_.exchange().target());
    group_.reduce_scatter(ctx_.exchange(), send, g.reduced, false, ctx_.workspace(bytes));
  }

  void finish_keys() override {
    ctx_.compute_after_exchange();
    for (const HeadGroup& g : groups_) {
      finish(columns(tensors_.dk, g), g.reduced.rows(0, rows_));
      finish(columns(tensors_.dv, g), g.reduced.rows(rows_, rows_));
    }
  }

 private:
  // The heads of a group inside [T, kv_heads, D].
  static TensorView columns(const TensorView& x, const HeadGroup& g) { return x.slice(1, g.begin, g.count); }

  // The off-diagonal blocks of every sequence: those of the second chunk of rank `second`, then those of the first
  // chunk of rank `first`.
  std::vector<ops::StridedBlocks> off_diagonal_blocks(std::int64_t second, std::int64_t first) const {
    const std::int64_t chunk = ctx_.batch().uniform_diagonal, ranks = group_.size();
    if (chunk == 0 || !mask_.causal) return {};
    const std::int64_t sequences = rows_ / (2 * chunk);
    const std::int64_t reach = mask_.window > 0 ? mask_.window - 1 : ranks * 2 * chunk;
    const auto before = [&](std::int64_t place, std::int64_t chunks) {
      const std::int64_t keys = std::min(reach, chunks * chunk);
      return ops::StridedBlocks{.count = sequences,
                                .q_begin = place * chunk,
                                .q_rows = std::min(reach, chunk),
                                .q_step = 2 * chunk,
                                .k_begin = chunks * chunk - keys,
                                .k_rows = keys,
                                .k_step = 2 * ranks * chunk};
    };
    std::vector<ops::StridedBlocks> out{before(1, 2 * ranks - 1 - second)};
    if (first > 0) out.push_back(before(0, first));
    return out;
  }

  void gather(HeadGroup& g) {
    Stream& exchange = ctx_.exchange();
    const std::int64_t width = g.count * head_dim_, all = group_.size() * 2 * rows_;
    const DType dtype = tensors_.k.dtype();
    const TensorView packed = ctx_.temp(dtype, {2 * rows_, width});
    ops::copy(exchange, {.x = columns(tensors_.k, g), .y = packed.rows(0, rows_).split_last(g.count, head_dim_)});
    ops::copy(exchange, {.x = columns(tensors_.v, g), .y = packed.rows(rows_, rows_).split_last(g.count, head_dim_)});
    const TensorView gathered = ctx_.temp(dtype, {all, width});  // [context, 2, T] rows
    group_.all_gather(exchange, packed, gathered);
    const TensorView index = ctx_.batch().gather_index;
    const TensorView k = ctx_.temp(dtype, {group_.size() * rows_, width});
    const TensorView v = ctx_.temp(dtype, {group_.size() * rows_, width});
    // The index is that of the K row; the V row of the same token is T rows further.
    ops::gather_rows(exchange, {.x = gathered.rows(0, all - rows_), .index = index, .y = k});
    ops::gather_rows(exchange, {.x = gathered.rows(rows_, all - rows_), .index = index, .y = v});
    g.k = k.split_last(g.count, head_dim_);
    g.v = v.split_last(g.count, head_dim_);
    g.arrived = exchange.record_event();
  }

  // y has the share of the diagonal blocks, if there are any.
  void finish(const TensorView& y, const TensorView& gathered) {
    const TensorView more = gathered.split_last(y.size(1), head_dim_);
    if (diagonal_ > 0) {
      ops::add(ctx_.compute(), {.a = y, .b = more, .y = y});
    } else {
      ops::cast(ctx_.compute(), {.x = more, .y = y});
    }
  }

  LayerContext& ctx_;
  AttentionMask mask_;
  int diagonal_;  // parts with the diagonal blocks: the first one, if the mask is causal
  comm::Group& group_;
  DType reduce_dtype_;
  nn::AttentionTensors tensors_;
  std::int64_t rows_, head_dim_;
  std::vector<HeadGroup> groups_;
};

}  // namespace

std::unique_ptr<nn::AttentionExchange::Call> AllGatherExchange::begin(LayerContext& ctx, const AttentionMask& mask,
                                                                      const nn::AttentionTensors& tensors) {
  return std::make_unique<GatherCall>(ctx, mask, group_, head_groups_, reduce_dtype_, tensors);
}

}  // namespace hawser::parallel
