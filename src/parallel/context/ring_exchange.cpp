// Shapes: T rows of a rank, W = key-value heads x head dim. Keys of a rank are [T, 2 W]: K and V next to each other.
#include "parallel/context/ring_exchange.h"

#include <limits>

#include "nn/layer.h"
#include "ops/copy/add.h"
#include "ops/copy/copy.h"

namespace hawser::parallel {

namespace {

using nn::AttentionPart;
using nn::AttentionTensors;
using nn::LayerContext;

class RingCall : public nn::AttentionExchange::Call {
 public:
  RingCall(LayerContext& ctx, comm::Group& group, DType kv_reduce_dtype, const AttentionMask& mask,
           const AttentionTensors& own)
      : ctx_(ctx),
        group_(group),
        kv_reduce_dtype_(kv_reduce_dtype),
        mask_(mask),
        own_(own),
        sums_(own),
        views_(ctx.batch().with_mask(mask)),
        diagonal_(mask.causal ? 1 : 0),
        pieces_(views_.by_source.empty() ? 0 : static_cast<int>(views_.by_source_count.size(0)) / group.size()) {
    ctx.exchange_after_compute();
    next_ = pack(own.k, own.v);
    arrived_ = ctx.exchange().record_event();
    if (own_.backward()) {
      sums_.dq = accumulator(own.dq);
      return;
    }
    sums_.o = accumulator(own.o);
    ops::fill(ctx.compute(), {.y = sums_.o});
    ops::fill(ctx.compute(), {.y = own.lse, .value = -std::numeric_limits<double>::infinity()});
  }

  int parts() const override { return diagonal_ + group_.size() * pieces_; }

  AttentionPart wait(int p) override {
    const bool first_of_turn = p == 0 || (p > diagonal_ && piece_of(p) == 0);
    if (first_of_turn) start(turn_of(p));
    AttentionPart part{.tensors = sums_,
                       .mask = mask_,
                       .query_ids = ctx_.batch().attention_row_ids,
                       .key_ids = key_ids(source_of(turn_of(p))),
                       .first = p == 0,
                       .accumulate_o = true,
                       .accumulate_kv = !first_of_turn};
    part.tensors.k = half(now_, 0);
    part.tensors.v = half(now_, 1);
    if (own_.backward()) {
      part.tensors.dk = half(gradient_, 0);
      part.tensors.dv = half(gradient_, 1);
    }
    if (p < diagonal_) {
      set_diagonal(part);
    } else {
      set_table(part, source_of(turn_of(p)), piece_of(p));
    }
    return part;
  }

  // When a turn's last part is computed, the keys of the one after the next may take its memory and, in backward, the
  // gradient of its keys leaves.
  void computed(int p) override {
    const bool last_of_turn = pieces_ == 0 || (p >= diagonal_ && piece_of(p) == pieces_ - 1);
    if (!last_of_turn) return;
    ctx_.exchange_after_compute();
    if (!own_.backward()) return;
    const int turn = turn_of(p);
    if (turn == 0) {
      sum_ = gradient_;
      return;
    }
    TensorView sent = gradient_;
    if (kv_reduce_dtype_ != DType::f32) {
      sent = ctx_.temp(kv_reduce_dtype_, gradient_.shape());
      ops::cast(ctx_.exchange(), {.x = gradient_, .y = sent});
    }
    const TensorView theirs = ctx_.temp(sent.dtype(), sent.shape());
    pass(sent, group_.size() - turn, theirs);
    ops::add(ctx_.exchange(), {.a = sum_, .b = theirs, .y = sum_});
  }

  void finish_queries() override {
    const TensorView &sum = own_.backward() ? sums_.dq : sums_.o, &to = own_.backward() ? own_.dq : own_.o;
    if (sum.raw() != to.raw()) ops::cast(ctx_.compute(), {.x = sum, .y = to});
  }

  void finish_keys() override {
    ctx_.compute_after_exchange();
    ops::cast(ctx_.compute(), {.x = half(sum_, 0), .y = own_.dk});
    ops::cast(ctx_.compute(), {.x = half(sum_, 1), .y = own_.dv});
  }

 private:
  int turn_of(int p) const { return std::max(0, p - diagonal_) / std::max(1, pieces_); }
  int piece_of(int p) const { return std::max(0, p - diagonal_) % std::max(1, pieces_); }
  int source_of(int turn) const { return (group_.index() - turn + group_.size()) % group_.size(); }

  TensorView accumulator(const TensorView& like) {
    return like.dtype() == DType::f32 ? like : ctx_.temp(DType::f32, like.shape());
  }

  // The keys of a turn have arrived, and the next ones arrive during it.
  void start(int turn) {
    ctx_.compute().wait(arrived_);
    now_ = next_;
    if (own_.backward()) gradient_ = ctx_.temp(DType::f32, now_.shape());
    if (pieces_ == 0 || turn + 1 == group_.size()) return;
    next_ = ctx_.temp(now_.dtype(), now_.shape());
    pass(now_, 1, next_);
    arrived_ = ctx_.exchange().record_event();
  }

  // `mine` goes `distance` ranks further, and what the rank `distance` before this one has comes to `theirs`.
  void pass(const TensorView& mine, int distance, const TensorView& theirs) {
    const int size = group_.size(), index = group_.index();
    group_.exchange(ctx_.exchange(), mine, (index + distance) % size, theirs, (index - distance + size) % size);
  }

  void set_diagonal(AttentionPart& part) const {
    const nn::BatchViews& batch = ctx_.batch();
    part.segments = batch.diagonal;
    part.segment_count = batch.diagonal_count;
    part.form = ops::SegmentForm::diagonal;
    part.blocks = nn::diagonal_blocks(batch, part.mask, own_.k.size(0));
    part.host_segments = batch.host_diagonal;
    part.visible = views_.diagonal_pairs;
  }

  void set_table(AttentionPart& part, int source, int piece) const {
    const std::int64_t tables = views_.by_source_count.size(0), rows = views_.by_source.size(0) / tables;
    part.mask.causal = false;  // off-diagonal blocks are complete, but for the window
    part.window_halves = mask_.causal && mask_.window > 0;
    const int table = source * pieces_ + piece;
    part.segments = views_.by_source.rows(table * rows, rows);
    part.segment_count = views_.by_source_count.rows(table, 1);
    if (views_.host_by_source != nullptr) {
      part.host_segments = &(*views_.host_by_source)[static_cast<std::size_t>(table)];
    }
    part.visible = views_.off_diagonal_pairs / static_cast<double>(tables);
    if (ctx_.batch().uniform_diagonal == 0 || !mask_.causal || pieces_ > 1) return;
    const std::int64_t chunk = ctx_.batch().uniform_diagonal;
    if (source > group_.index()) {
      part.blocks = {block(1, 2 * chunk)};
    } else {
      part.blocks = {block(1, chunk)};
      if (source < group_.index()) part.blocks.push_back(block(0, chunk));
    }
    part.largest = {block(1, 2 * chunk), block(0, chunk)};
  }

  // Of every sequence of a zig-zag: the queries of this rank's chunk number `query_chunk`, and the first `keys` rows
  // that another rank has.
  ops::StridedBlocks block(std::int64_t query_chunk, std::int64_t keys) const {
    const std::int64_t chunk = ctx_.batch().uniform_diagonal;
    return {.count = own_.k.size(0) / (2 * chunk),
            .q_begin = query_chunk * chunk,
            .q_rows = chunk,
            .q_step = 2 * chunk,
            .k_begin = 0,
            .k_rows = keys,
            .k_step = 2 * chunk};
  }

  TensorView key_ids(int source) const {
    const TensorView& all = ctx_.batch().source_row_ids;
    const std::int64_t rows = own_.k.size(0);
    return all.empty() ? all : all.rows(source * rows, rows);
  }

  TensorView pack(const TensorView& k, const TensorView& v) {
    const TensorView out = ctx_.temp(k.dtype(), {k.size(0), 2 * k.size(1) * k.size(2)});
    ops::copy(ctx_.exchange(), {.x = k, .y = half(out, 0)});
    ops::copy(ctx_.exchange(), {.x = v, .y = half(out, 1)});
    return out;
  }

  // K or V of the keys of a rank, as [T, heads, D].
  TensorView half(const TensorView& keys, int which) const {
    const std::int64_t width = own_.k.size(1) * own_.k.size(2);
    return keys.columns(which * width, width).split_last(own_.k.size(1), own_.k.size(2));
  }

  LayerContext& ctx_;
  comm::Group& group_;
  DType kv_reduce_dtype_;
  AttentionMask mask_;
  AttentionTensors own_, sums_;  // sums_: o and dq are float32 accumulators
  const nn::MaskViews& views_;
  int diagonal_, pieces_;  // parts of the diagonal blocks; of a turn's keys, none if a query sees its own key only
  TensorView now_, next_;  // keys of this turn, and of the one that arrives
  Event arrived_;
  TensorView gradient_, sum_;  // float32: of the turn's keys; of this rank's keys
};

}  // namespace

std::unique_ptr<nn::AttentionExchange::Call> RingExchange::begin(LayerContext& ctx, const AttentionMask& mask,
                                                                 const nn::AttentionTensors& tensors) {
  return std::make_unique<RingCall>(ctx, group_, kv_reduce_dtype_, mask, tensors);
}

}  // namespace hawser::parallel
