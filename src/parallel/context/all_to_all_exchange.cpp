// Shapes: U ranks of the group, T rows of a rank, A = U T rows in attention, D head dim.
#include "parallel/context/all_to_all_exchange.h"

#include <vector>

#include "nn/layer.h"
#include "ops/copy/copy.h"
#include "ops/copy/permute_rows.h"
#include "ops/copy/sum_parts.h"

namespace hawser::parallel {

namespace {

using nn::AttentionTensors;
using nn::LayerContext;

// Which heads of a tensor [rows, heads, D] each rank of the group has.
struct HeadsOfRanks {
  std::int64_t count = 0;  // on each rank
  int copies = 1;          // consecutive ranks with the same heads

  std::int64_t begin(int rank) const { return rank / copies * count; }
};

HeadsOfRanks divide_heads(std::int64_t heads, int ranks) {
  const bool copies = ranks > heads;
  HAWSER_CHECK(copies ? ranks % heads == 0 : heads % ranks == 0, heads, " heads over ", ranks, " ranks");
  return copies ? HeadsOfRanks{1, static_cast<int>(ranks / heads)} : HeadsOfRanks{heads / ranks, 1};
}

class AllToAllCall : public nn::AttentionExchange::Call {
 public:
  // in_ring: `inner` moves keys, and finishes their gradients later.
  AllToAllCall(LayerContext& ctx, comm::Group& group, nn::AttentionExchange& inner, bool in_ring, DType kv_reduce_dtype,
               const AttentionMask& mask, const AttentionTensors& own)
      : ctx_(ctx),
        group_(group),
        in_ring_(in_ring),
        kv_reduce_dtype_(kv_reduce_dtype),
        own_(own),
        q_(divide_heads(own.q.size(1), group.size())),
        kv_(divide_heads(own.k.size(1), group.size())) {
    HAWSER_CHECK(q_.copies == 1, own.q.size(1), " query heads over ", group.size(), " ranks");
    ctx.exchange_after_compute();
    std::vector<TensorView> moved{own.q, own.k, own.v};
    if (own_.backward()) moved.push_back(own.o);
    moved = to_heads(moved);
    all_.q = moved[0], all_.k = moved[1], all_.v = moved[2];
    all_.lse = own.lse.reshape({q_.count, all_.q.size(0)});
    if (own_.backward()) {
      all_.o = moved[3];
      all_.d_o = ctx.temp(own.d_o.dtype(), all_.q.shape());
      all_.dq = ctx.temp(own.dq.dtype(), all_.q.shape());
      const DType kv_dtype = kv_.copies > 1 ? DType::f32 : own.dk.dtype();  // copies are rounded once, when they move
      all_.dk = ctx.temp(kv_dtype, all_.k.shape());
      all_.dv = ctx.temp(kv_dtype, all_.k.shape());
    } else {
      all_.o = ctx.temp(own.o.dtype(), all_.q.shape());
    }
    inner_ = inner.begin(ctx, mask, all_);
  }

  int parts() const override { return inner_->parts(); }

  nn::AttentionPart wait(int p) override {
    if (p == 0) {
      if (own_.backward()) {
        ctx_.exchange_after_compute();  // d_o
        to_heads({own_.d_o}, all_.d_o.reshape({all_.d_o.size(0), q_.count * own_.d_o.size(2)}));
      }
      ctx_.compute_after_exchange();
    }
    nn::AttentionPart part = inner_->wait(p);
    part.first_head += q_.begin(group_.index());
    return part;
  }

  // After the last part what is complete leaves; without a ring that is all, so that gradients of keys move while the
  // layer continues with those of queries.
  void computed(int p) override {
    inner_->computed(p);
    if (p + 1 < inner_->parts()) return;
    inner_->finish_queries();
    ctx_.exchange_after_compute();
    move_queries();
    queries_moved_ = ctx_.exchange().record_event();
    if (!own_.backward() || in_ring_) return;
    inner_->finish_keys();
    move_keys();
  }

  void finish_queries() override { ctx_.compute().wait(queries_moved_); }

  void finish_keys() override {
    if (in_ring_) {
      inner_->finish_keys();
      ctx_.exchange_after_compute();
      move_keys();
    }
    ctx_.compute().wait(keys_moved_);
    const std::int64_t rows = own_.dk.size(0), width = kv_.count * own_.dk.size(2);
    for (int rank = 0; rank < group_.size(); rank += kv_.copies) {
      const TensorView sum = sum_of(keys_.rows(rank * rows, kv_.copies * rows));
      const auto take = [&](std::int64_t column, const TensorView& to) {
        ops::cast(ctx_.compute(), {.x = sum.columns(column, width).split_last(kv_.count, to.size(2)),
                                   .y = to.slice(1, kv_.begin(rank), kv_.count)});
      };
      take(0, own_.dk);
      take(width, own_.dv);
    }
  }

 private:
  const HeadsOfRanks& heads_of(const TensorView& x) const { return x.size(1) == own_.q.size(1) ? q_ : kv_; }

  void move_queries() {
    const TensorView moved = to_rows({own_.backward() ? all_.dq : all_.o});
    const TensorView& to = own_.backward() ? own_.dq : own_.o;
    const std::int64_t rows = to.size(0);
    for (int rank = 0; rank < group_.size(); ++rank) {
      ops::copy(ctx_.exchange(), {.x = moved.rows(rank * rows, rows).split_last(q_.count, to.size(2)),
                                  .y = to.slice(1, q_.begin(rank), q_.count)});
    }
  }

  void move_keys() {
    keys_ = to_rows({all_.dk, all_.dv});
    keys_moved_ = ctx_.exchange().record_event();
  }

  // Each x [T, heads, D] of all heads to [A, heads of this rank, D] of all rows, in the order of attention's rows: the
  // columns of one matrix, which moves as one message. `to`: that matrix; empty: a temporary.
  std::vector<TensorView> to_heads(const std::vector<TensorView>& tensors, TensorView to = {}) {
    const std::int64_t rows = tensors[0].size(0), head_dim = tensors[0].size(2);
    std::int64_t heads = 0;
    for (const TensorView& x : tensors) heads += heads_of(x).count;
    const TensorView send = ctx_.temp(tensors[0].dtype(), {group_.size() * rows, heads * head_dim});
    for (int rank = 0; rank < group_.size(); ++rank) {
      std::int64_t column = 0;
      for (const TensorView& x : tensors) {
        const HeadsOfRanks& of = heads_of(x);
        const std::int64_t width = of.count * head_dim;
        ops::copy(ctx_.exchange(),
                  {.x = x.slice(1, of.begin(rank), of.count),
                   .y = send.rows(rank * rows, rows).columns(column, width).split_last(of.count, head_dim)});
        column += width;
      }
    }
    if (to.empty()) to = ctx_.temp(send.dtype(), send.shape());
    const TensorView& index = ctx_.batch().heads_index;
    if (index.empty()) {
      group_.all_to_all(ctx_.exchange(), send, to);
    } else {
      ops::gather_rows(ctx_.exchange(), {.x = moved(send), .index = index, .y = to});
    }
    std::vector<TensorView> out;
    std::int64_t column = 0;
    for (const TensorView& x : tensors) {
      const std::int64_t count = heads_of(x).count;
      out.push_back(to.columns(column, count * head_dim).split_last(count, head_dim));
      column += count * head_dim;
    }
    return out;
  }

  // The inverse, up to the heads: [U T, heads of a rank x D] of this rank's rows, the heads of one rank after those of
  // another. The columns of several tensors are next to each other.
  TensorView to_rows(const std::vector<TensorView>& tensors) {
    const std::int64_t rows = tensors[0].size(0), width = tensors[0].size(1) * tensors[0].size(2);
    const bool keys = tensors.size() > 1;
    const DType dtype = keys && kv_.copies > 1 ? kv_reduce_dtype_ : tensors[0].dtype();
    TensorView packed = tensors[0].reshape({rows, width});
    if (keys) {
      packed = ctx_.temp(dtype, {rows, 2 * width});
      for (const std::int64_t i : {0, 1}) {
        ops::cast(ctx_.exchange(), {.x = tensors[static_cast<std::size_t>(i)].reshape({rows, width}),
                                    .y = packed.columns(i * width, width)});
      }
    }
    const TensorView& index = ctx_.batch().heads_index;
    if (index.empty()) return moved(packed);
    const TensorView send = ctx_.temp(dtype, packed.shape());
    ops::scatter_rows(ctx_.exchange(), {.x = packed, .index = index, .y = send});
    return moved(send);
  }

  TensorView moved(const TensorView& send) {
    const TensorView received = ctx_.temp(send.dtype(), send.shape());
    group_.all_to_all(ctx_.exchange(), send, received);
    return received;
  }

  // Of the copies [copies T, C].
  TensorView sum_of(const TensorView& parts) {
    if (kv_.copies == 1) return parts;
    const TensorView sum = ctx_.temp(parts.dtype(), {parts.size(0) / kv_.copies, parts.size(1)});
    ops::sum_parts(ctx_.compute(), {.parts = parts, .residual = {}, .y = sum});
    return sum;
  }

  LayerContext& ctx_;
  comm::Group& group_;
  bool in_ring_;
  DType kv_reduce_dtype_;
  AttentionTensors own_, all_;  // of this rank's rows; of its heads
  HeadsOfRanks q_, kv_;
  TensorView keys_;  // gradients of this rank's rows, from each rank
  Event queries_moved_, keys_moved_;
  std::unique_ptr<nn::AttentionExchange::Call> inner_;
};

}  // namespace

std::unique_ptr<nn::AttentionExchange::Call> AllToAllExchange::begin(LayerContext& ctx, const AttentionMask& mask,
                                                                     const nn::AttentionTensors& tensors) {
  return std::make_unique<AllToAllCall>(ctx, group_, *inner_, in_ring_, kv_reduce_dtype_, mask, tensors);
}

}  // namespace hawser::parallel
