// Context parallelism by all-to-all over heads, and by a ring, for tests.
#pragma once

#include <algorithm>
#include <limits>

#include "comm/group.h"
#include "nn/layer.h"
#include "ops/copy/add.h"
#include "ops/copy/copy.h"
#include "ops/copy/permute_rows.h"
#include "ops/copy/transpose.h"

namespace hawser::testing {

// The views of tensors [first, first + count) that an exchange saves; none if the pass does not save them. Rejects
// another number, and views of which some are empty; backward has all of them.
inline std::vector<TensorView> saved_of(const nn::AttentionTensors& own, std::size_t first, std::size_t count) {
  HAWSER_CHECK(own.saved.size() >= first + count, own.saved.size(), " saved tensors, ", first + count, " needed");
  const auto begin = own.saved.begin() + static_cast<std::ptrdiff_t>(first);
  std::vector<TensorView> views(begin, begin + static_cast<std::ptrdiff_t>(count));
  const auto empty = std::ranges::count_if(views, [](const TensorView& view) { return view.empty(); });
  HAWSER_CHECK(empty == 0 || (own.d_o.empty() && empty == std::ssize(views)), empty, " of ", count, " are empty");
  if (empty > 0) views.clear();
  return views;
}

// What an exchange saves: all that its forward has moved, unless the policy recomputes q, k and v.
inline bool saves_under(bool saves, const nn::SavePolicy& policy) {
  return saves && (policy.recomputes_attention() || !policy.recomputes_qkv());
}

// Ranks with the same rows of a ring get some heads each (DeepSpeed-Ulysses, arXiv 2309.14509): queries, keys and
// values move there, `inner` computes their attention with the tables of the ring, and outputs move back. The number of
// ranks divides the key-value heads.
class HeadCall : public nn::AttentionExchange::Call {
 public:
  // What HeadExchange may save.
  enum Saved : std::size_t { kQ, kK, kV, kO, kLse, kSaved };

  // saved: the first of own.saved that are of this call; the others are of `inner`.
  HeadCall(nn::LayerContext& ctx, comm::Group& group, nn::AttentionExchange& inner, const AttentionMask& mask,
           const nn::AttentionTensors& own, std::size_t saved)
      : ctx_(ctx), group_(group), own_(own), saved_(saved_of(own, 0, saved)) {
    all_.saved.assign(own.saved.begin() + static_cast<std::ptrdiff_t>(saved), own.saved.end());
    HAWSER_CHECK(own.k.size(1) % group.size() == 0, own.k.size(1), " key-value heads over ", group.size(), " ranks");
    ctx.exchange_after_compute();
    const bool has = backward() && !saved_.empty();
    all_.q = has ? saved_[kQ] : to_heads(own.q, kQ);
    all_.k = has ? saved_[kK] : to_heads(own.k, kK);
    all_.v = has ? saved_[kV] : to_heads(own.v, kV);
    if (backward()) {
      all_.o = has ? saved_[kO] : to_heads(own.o, kO);
      all_.lse = has ? saved_[kLse] : transposed(to_heads(transposed(own.lse).split_last(own.q.size(1), 1), kSaved));
      all_.d_o = ctx.temp(own.d_o.dtype(), all_.q.shape());
      all_.dq = ctx.temp(own.dq.dtype(), all_.q.shape());
      all_.dk = ctx.temp(own.dk.dtype(), all_.k.shape());
      all_.dv = ctx.temp(own.dv.dtype(), all_.k.shape());
    } else {
      all_.o = saved_or_temp(kO, own.o.dtype(), all_.q.shape());
      all_.lse = saved_or_temp(kLse, DType::f32, {all_.q.size(1), all_.q.size(0)});
    }
    ctx.compute_after_exchange();
    inner_ = backward() ? inner.backward(ctx, mask, all_) : inner.forward(ctx, mask, all_);
  }
  int parts() const override { return inner_->parts(); }
  nn::AttentionPart wait(int p) override {
    if (p == 0 && backward()) {
      ctx_.exchange_after_compute();  // d_o
      to_heads(own_.d_o, all_.d_o);
      ctx_.compute_after_exchange();
    }
    nn::AttentionPart part = inner_->wait(p);
    part.first_head += group_.index() * all_.q.size(1);
    return part;
  }
  void computed(int p) override { inner_->computed(p); }
  void finish_queries() override {
    inner_->finish_queries();
    ctx_.exchange_after_compute();
    if (backward()) {
      to_rows(all_.dq, own_.dq);
    } else {
      to_rows(all_.o, own_.o);
      const TensorView lse = ctx_.temp(DType::f32, {own_.q.size(0), own_.q.size(1)});
      to_rows(transposed(all_.lse).split_last(all_.q.size(1), 1), lse.split_last(own_.q.size(1), 1));
      ops::transpose(ctx_.exchange(), {.x = lse, .y = own_.lse});
    }
    ctx_.compute_after_exchange();
  }
  void finish_keys() override {
    inner_->finish_keys();
    ctx_.exchange_after_compute();
    to_rows(all_.dk, own_.dk);
    to_rows(all_.dv, own_.dv);
    ctx_.compute_after_exchange();
  }

 private:
  bool backward() const { return !own_.d_o.empty(); }
  TensorView saved_or_temp(Saved which, DType dtype, const Shape& shape) {
    return which < saved_.size() ? saved_[which] : ctx_.temp(dtype, shape);
  }
  TensorView to_heads(const TensorView& x, Saved which) {
    const TensorView y =
        saved_or_temp(which, x.dtype(), {group_.size() * x.size(0), x.size(1) / group_.size(), x.size(2)});
    to_heads(x, y);
    return y;
  }
  // [T, heads, D] of all heads to [U T, heads / U, D] in the order of the ring's rank.
  void to_heads(const TensorView& x, const TensorView& y) {
    const std::int64_t rows = x.size(0), heads = y.size(1), width = heads * x.size(2);
    const TensorView send = ctx_.temp(x.dtype(), {group_.size() * rows, width}),
                     received = ctx_.temp(x.dtype(), send.shape());
    for (int rank = 0; rank < group_.size(); ++rank) {
      ops::copy(ctx_.exchange(),
                {.x = x.slice(1, rank * heads, heads), .y = send.rows(rank * rows, rows).split_last(heads, x.size(2))});
    }
    group_.all_to_all(ctx_.exchange(), send, received);
    ops::gather_rows(ctx_.exchange(),
                     {.x = received, .index = ctx_.batch().heads_index, .y = y.reshape({y.size(0), width})});
  }
  // The inverse.
  void to_rows(const TensorView& x, const TensorView& y) {
    const std::int64_t rows = y.size(0), heads = x.size(1), width = heads * x.size(2);
    const TensorView send = ctx_.temp(x.dtype(), {group_.size() * rows, width}),
                     received = ctx_.temp(x.dtype(), send.shape());
    ops::scatter_rows(ctx_.exchange(),
                      {.x = x.reshape({x.size(0), width}), .index = ctx_.batch().heads_index, .y = send});
    group_.all_to_all(ctx_.exchange(), send, received);
    for (int rank = 0; rank < group_.size(); ++rank) {
      ops::copy(ctx_.exchange(), {.x = received.rows(rank * rows, rows).split_last(heads, x.size(2)),
                                  .y = y.slice(1, rank * heads, heads)});
    }
  }
  TensorView transposed(const TensorView& x) {
    const TensorView matrix = x.rank() == 3 ? x.reshape({x.size(0), x.size(1)}) : x;
    const TensorView y = ctx_.temp(x.dtype(), {matrix.size(1), matrix.size(0)});
    ops::transpose(ctx_.exchange(), {.x = matrix, .y = y});
    return y;
  }

  nn::LayerContext& ctx_;
  comm::Group& group_;
  nn::AttentionTensors own_, all_;
  std::vector<TensorView> saved_;
  std::unique_ptr<nn::AttentionExchange::Call> inner_;
};

class HeadExchange : public nn::AttentionExchange {
 public:
  // saves: forward saves what it has moved, so that backward moves the gradients only.
  explicit HeadExchange(comm::Group& group,
                        std::shared_ptr<nn::AttentionExchange> inner = std::make_shared<nn::AttentionExchange>(),
                        bool saves = false)
      : group_(group), inner_(std::move(inner)), saves_(saves) {}
  std::vector<nn::ExchangeTensor> saved_tensors(const nn::AttentionShape& shape, std::int64_t rows, DType dtype,
                                                const nn::SavePolicy& policy) const override {
    const std::int64_t all = rows * group_.size(), q = shape.heads / group_.size(), k = shape.kv_heads / group_.size();
    std::vector<nn::ExchangeTensor> out;
    if (saves_under(saves_, policy)) {
      out = {{"heads_q", dtype, {all, q, shape.head_dim}},
             {"heads_k", dtype, {all, k, shape.head_dim}},
             {"heads_v", dtype, {all, k, shape.head_dim}},
             {"heads_o", dtype, {all, q, shape.head_dim}},
             {"heads_lse", DType::f32, {q, all}}};
    }
    const nn::AttentionShape of_heads{shape.mask, q, k, shape.head_dim};
    for (const nn::ExchangeTensor& more : inner_->saved_tensors(of_heads, all, dtype, policy)) out.push_back(more);
    return out;
  }
  std::unique_ptr<Call> forward(nn::LayerContext& ctx, const AttentionMask& mask,
                                const nn::AttentionTensors& own) override {
    return call(ctx, mask, own);
  }
  std::unique_ptr<Call> backward(nn::LayerContext& ctx, const AttentionMask& mask,
                                 const nn::AttentionTensors& own) override {
    return call(ctx, mask, own);
  }

 private:
  std::unique_ptr<Call> call(nn::LayerContext& ctx, const AttentionMask& mask, const nn::AttentionTensors& own) {
    // Under a policy that saves none of these, `inner` saves none either.
    const std::size_t saved = saves_ && !own.saved.empty() ? std::size_t{HeadCall::kSaved} : 0;
    return std::make_unique<HeadCall>(ctx, group_, *inner_, mask, own, saved);
  }

  comm::Group& group_;
  std::shared_ptr<nn::AttentionExchange> inner_;
  bool saves_;
};

// Keys and values move from rank to rank (arXiv 2310.01889). With a causal mask, part 0 is the diagonal blocks; then
// each rank's keys are one part, or with a window a part for each chunk. All parts are merged into float32
// accumulators. Gradients of keys go to their rank at the end. Reads MaskViews::by_source.
class RingCall : public nn::AttentionExchange::Call {
 public:
  // Keys that arrive are saved in own.saved, if there are any, and do not move again in backward.
  RingCall(nn::LayerContext& ctx, comm::Group& group, const AttentionMask& mask, const nn::AttentionTensors& own)
      : ctx_(ctx),
        group_(group),
        mask_(mask),
        own_(own),
        sums_(own),
        saved_(saved_of(own, 0, own.saved.size())),
        views_(ctx.batch().with_mask(mask)),
        diagonal_(mask.causal ? 1 : 0),
        pieces_(views_.by_source.empty() ? 0 : static_cast<int>(views_.by_source_count.size(0)) / group.size()) {
    ctx.exchange_after_compute();
    keys_ = pack(own.k, own.v);
    arrived_ = ctx.exchange().record_event();
    if (backward()) {
      sums_.dq = accumulator(own.dq);
      return;
    }
    sums_.o = accumulator(own.o);
    ops::fill(ctx.compute(), {.y = sums_.o});
    ops::fill(ctx.compute(), {.y = own.lse, .value = -std::numeric_limits<double>::infinity()});
  }
  int parts() const override { return diagonal_ + group_.size() * pieces_; }
  nn::AttentionPart wait(int p) override {
    const bool diagonal = p < diagonal_;
    const int turn = diagonal ? 0 : (p - diagonal_) / pieces_, piece = diagonal ? 0 : (p - diagonal_) % pieces_;
    const bool new_source = diagonal || (piece == 0 && (turn > 0 || diagonal_ == 0));
    if (new_source) start(turn);
    nn::AttentionPart part{.tensors = sums_,
                           .mask = mask_,
                           .query_ids = ctx_.batch().attention_row_ids,
                           .first = p == 0,
                           .accumulate_o = true,
                           .accumulate_kv = !new_source};
    part.tensors.k = half(now_, 0, own_.k);
    part.tensors.v = half(now_, 1, own_.k);
    if (backward()) {
      part.tensors.dk = half(gradients_.back(), 0, own_.k);
      part.tensors.dv = half(gradients_.back(), 1, own_.k);
    }
    const int source = (group_.index() - turn + group_.size()) % group_.size();
    part.key_ids = key_ids(source);
    if (diagonal) {
      set_diagonal(part);
    } else {
      set_table(part, source, piece);
    }
    return part;
  }
  void finish_queries() override {
    const TensorView &sum = backward() ? sums_.dq : sums_.o, &to = backward() ? own_.dq : own_.o;
    if (sum.raw() != to.raw()) ops::cast(ctx_.compute(), {.x = sum, .y = to});
  }
  void finish_keys() override {
    ctx_.exchange_after_compute();
    const TensorView sum = gradients_.front();
    std::vector<TensorView> received;
    for (std::size_t turn = 1; turn < gradients_.size(); ++turn) {
      received.push_back(passed(gradients_[turn], group_.size() - static_cast<int>(turn)));
    }
    ctx_.compute_after_exchange();
    for (const TensorView& more : received) ops::add(ctx_.compute(), {.a = sum, .b = more, .y = sum});
    ops::cast(ctx_.compute(), {.x = half(sum, 0, own_.k), .y = own_.dk});
    ops::cast(ctx_.compute(), {.x = half(sum, 1, own_.k), .y = own_.dv});
  }

 private:
  bool backward() const { return !own_.dk.empty(); }
  TensorView accumulator(const TensorView& like) {
    return like.dtype() == DType::f32 ? like : ctx_.temp(DType::f32, like.shape());
  }
  // The keys of a turn are there, and the next ones arrive during it.
  void start(int turn) {
    ctx_.compute().wait(arrived_);
    now_ = keys_;
    if (backward()) gradients_.push_back(ctx_.temp(DType::f32, now_.shape()));
    if (pieces_ == 0 || turn + 1 == group_.size()) return;
    const TensorView saved = saved_.empty() ? TensorView() : saved_[static_cast<std::size_t>(turn)];
    if (backward() && !saved.empty()) {
      keys_ = saved;
      return;
    }
    keys_ = passed(keys_, 1, saved);
    arrived_ = ctx_.exchange().record_event();
  }
  void set_diagonal(nn::AttentionPart& part) const {
    const nn::BatchViews& batch = ctx_.batch();
    part.segments = batch.diagonal;
    part.segment_count = batch.diagonal_count;
    part.form = ops::SegmentForm::diagonal;
    part.blocks = nn::diagonal_blocks(batch, part.mask, own_.k.size(0));
    part.host_segments = batch.host_diagonal;
    part.visible = views_.diagonal_pairs;
  }
  void set_table(nn::AttentionPart& part, int source, int piece) const {
    const std::int64_t tables = views_.by_source_count.size(0), rows = views_.by_source.size(0) / tables;
    part.mask.causal = false;  // off-diagonal blocks are complete, but for the window
    part.window_halves = mask_.causal && mask_.window > 0 && ctx_.batch().uniform_diagonal == 0;
    const int table = source * pieces_ + piece;
    part.segments = views_.by_source.rows(table * rows, rows);
    part.segment_count = views_.by_source_count.rows(table, 1);
    if (views_.host_by_source != nullptr) {
      part.host_segments = &(*views_.host_by_source)[static_cast<std::size_t>(table)];
    }
    part.visible = views_.off_diagonal_pairs / static_cast<double>(tables);
  }
  TensorView key_ids(int source) const {
    const TensorView& all = ctx_.batch().source_row_ids;
    const std::int64_t rows = own_.k.size(0);
    return all.empty() ? all : all.rows(source * rows, rows);
  }
  // What the rank `distance` before this one has, while this rank's goes `distance` further. The same op on every rank:
  // with a send and a receive in an order that depends on the rank, the ranks could not share a plan.
  // `to_saved`: receive it there; empty: in a temporary.
  TensorView passed(const TensorView& mine, int distance, const TensorView& to_saved = {}) {
    const int size = group_.size(), index = group_.index();
    const int to = (index + distance) % size, from = (index - distance + size) % size;
    const TensorView theirs = to_saved.empty() ? ctx_.temp(mine.dtype(), mine.shape()) : to_saved;
    group_.exchange(ctx_.exchange(), mine, to, theirs, from);
    return theirs;
  }
  TensorView pack(const TensorView& k, const TensorView& v) {
    const std::int64_t width = k.size(1) * k.size(2);
    const TensorView out = ctx_.temp(k.dtype(), {k.size(0), 2 * width});
    ops::copy(ctx_.exchange(), {.x = k, .y = half(out, 0, k)});
    ops::copy(ctx_.exchange(), {.x = v, .y = half(out, 1, k)});
    return out;
  }
  static TensorView half(const TensorView& rows, int which, const TensorView& like) {
    const std::int64_t width = like.size(1) * like.size(2);
    return rows.columns(which * width, width).split_last(like.size(1), like.size(2));
  }

  nn::LayerContext& ctx_;
  comm::Group& group_;
  AttentionMask mask_;
  nn::AttentionTensors own_, sums_;  // sums_: o and dq are float32 accumulators
  std::vector<TensorView> saved_;    // keys of each turn after the first
  const nn::MaskViews& views_;
  int diagonal_, pieces_;  // parts of the diagonal blocks; of each source
  TensorView keys_, now_;
  Event arrived_;
  std::vector<TensorView> gradients_;  // of the keys of each turn
};

class RingExchange : public nn::AttentionExchange {
 public:
  // saves: forward saves the keys and values that arrive.
  explicit RingExchange(comm::Group& group, bool saves = false) : group_(group), saves_(saves) {}
  std::vector<nn::ExchangeTensor> saved_tensors(const nn::AttentionShape& shape, std::int64_t rows, DType dtype,
                                                const nn::SavePolicy& policy) const override {
    if (!saves_under(saves_, policy)) return {};
    const Shape keys_and_values{rows, 2 * shape.kv_heads * shape.head_dim};
    return {static_cast<std::size_t>(group_.size() - 1), {"ring_keys", dtype, keys_and_values}};
  }
  std::unique_ptr<Call> forward(nn::LayerContext& ctx, const AttentionMask& mask,
                                const nn::AttentionTensors& own) override {
    return std::make_unique<RingCall>(ctx, group_, mask, own);
  }
  std::unique_ptr<Call> backward(nn::LayerContext& ctx, const AttentionMask& mask,
                                 const nn::AttentionTensors& own) override {
    return std::make_unique<RingCall>(ctx, group_, mask, own);
  }

 private:
  comm::Group& group_;
  bool saves_;
};

}  // namespace hawser::testing
