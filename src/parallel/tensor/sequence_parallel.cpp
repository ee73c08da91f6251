// R: rows of the residual on each rank; P: tensor ranks.
#include "parallel/tensor/sequence_parallel.h"

#include "ops/copy/add.h"
#include "ops/copy/copy.h"
#include "ops/copy/sum_parts.h"

namespace hawser::parallel {

namespace {

// The member `steps` after this one, in the circle of the members.
int member(const comm::Group& group, int steps) {
  return (group.index() + steps + group.size()) % group.size();
}

}  // namespace

class SequenceParallel::AllGather : public Gather {
 public:
  AllGather(nn::LayerContext& ctx, comm::Group& group, const nn::Scaled& x, Rows needed)
      : ctx_(ctx), group_(group), x_(x), all_(ctx.temp(x.view.dtype(), {ctx.rows().full, x.view.size(1)})) {
    HAWSER_CHECK(x.view.size(0) * group.size() == all_.size(0), "gather of ", x.view.text());
    ctx.exchange_after_compute();
    exchange(1);
    if (needed == Rows::in_pieces) return;
    ops::copy(ctx.exchange(), {.x = x.view, .y = rows(0)});
    own_copied_ = ctx.exchange().record_event();
  }

  int pieces() const override { return group_.size(); }
  nn::RowPiece wait(int p) override {
    if (p == 0) return {x_, first_row(0)};
    arrive(p);
    return {{rows(p), x_.scale}, first_row(p)};
  }
  nn::Scaled all() override {
    finish();
    ctx_.compute().wait(own_copied_);
    return {all_, x_.scale};
  }
  void finish() override {
    for (int p = arrived_ + 1; p < group_.size(); ++p) arrive(p);
  }

 private:
  std::int64_t first_row(int p) const { return member(group_, p) * x_.view.size(0); }
  TensorView rows(int p) const { return all_.rows(first_row(p), x_.view.size(0)); }
  // Begins that of piece p. The layer may enqueue other exchanges, which it does not wait for, before wait(p).
  void exchange(int p) {
    group_.exchange(ctx_.exchange(), x_.view, member(group_, -p), rows(p), member(group_, p));
    exchanged_ = ctx_.exchange().record_event();
  }
  // The compute stream waits for piece p, whose successor begins.
  void arrive(int p) {
    arrived_ = p;
    ctx_.compute().wait(exchanged_);
    if (p + 1 < group_.size()) exchange(p + 1);
  }

  nn::LayerContext& ctx_;
  comm::Group& group_;
  nn::Scaled x_;
  TensorView all_;
  int arrived_ = 0;               // the last piece that the compute stream has waited for
  Event exchanged_, own_copied_;  // of the last exchange that has begun; of the copy, with Rows::together
};

// Of pieces in the order of the header.
class SequenceParallel::ExchangeAndSum : public Sum {
 public:
  ExchangeAndSum(nn::LayerContext& ctx, comm::Group& group, const TensorView& y, const TensorView& residual)
      : ctx_(ctx),
        group_(group),
        y_(y),
        residual_(residual),
        sent_(ctx.temp(y.dtype(), {(group.size() - 1) * y.size(0), y.size(1)})),
        parts_(ctx.temp(y.dtype(), {group.size() * y.size(0), y.size(1)})) {
    HAWSER_CHECK(parts_.size(0) == ctx.rows().full, "sum of ", y.text());
  }

  int pieces() const override { return group_.size(); }
  nn::RowTarget target(int p) override {
    const std::int64_t first_row = member(group_, p + 1) * y_.size(0);
    return {last(p) ? part_of(group_.index()) : sent(p), first_row};
  }
  void written(int p) override {
    ctx_.exchange_after_compute();
    if (last(p)) {
      ops::sum_parts(ctx_.exchange(), {.parts = parts_, .residual = residual_, .y = y_});
      summed_ = ctx_.exchange().record_event();
      return;
    }
    const int to = member(group_, p + 1), from = member(group_, -p - 1);
    group_.exchange(ctx_.exchange(), sent(p), to, part_of(from), from);
  }
  void finish() override { ctx_.compute().wait(summed_); }

 private:
  bool last(int p) const { return p + 1 == group_.size(); }
  TensorView sent(int p) const { return sent_.rows(p * y_.size(0), y_.size(0)); }
  TensorView part_of(int rank) const { return parts_.rows(rank * y_.size(0), y_.size(0)); }

  nn::LayerContext& ctx_;
  comm::Group& group_;
  TensorView y_, residual_;
  TensorView sent_;   // [(P - 1) * R, C]: parts of the other ranks' rows, by piece
  TensorView parts_;  // [P * R, C]: the ranks' parts of this rank's rows
  Event summed_;
};

class SequenceParallel::ReduceScatter : public Sum {
 public:
  ReduceScatter(nn::LayerContext& ctx, comm::Group& group, const TensorView& y, const TensorView& residual)
      : ctx_(ctx),
        group_(group),
        y_(y),
        residual_(residual),
        parts_(ctx.temp(y.dtype(), {ctx.rows().full, y.size(1)})) {
    HAWSER_CHECK(y.size(0) * group.size() == parts_.size(0), "sum of ", y.text());
  }

  int pieces() const override { return group_.size(); }
  nn::RowTarget target(int p) override {
    const std::int64_t rows = y_.size(0);
    return {parts_.rows(p * rows, rows), p * rows};
  }
  void written(int p) override {
    if (p + 1 < pieces()) return;
    const std::int64_t bytes =
        comm::reduce_scatter_workspace(y_.elements(), y_.dtype(), group_.size(), ctx_.exchange().target());
    ctx_.exchange_after_compute();
    group_.reduce_scatter(ctx_.exchange(), parts_.reshape({parts_.elements()}), y_.reshape({y_.elements()}), false,
                          ctx_.workspace(bytes));
  }
  void finish() override {
    ctx_.compute_after_exchange();
    if (!residual_.empty()) ops::add(ctx_.compute(), {.a = y_, .b = residual_, .y = y_});
  }

 private:
  nn::LayerContext& ctx_;
  comm::Group& group_;
  TensorView y_, residual_, parts_;
};

std::unique_ptr<nn::Redistribute::Gather> SequenceParallel::gather(nn::LayerContext& ctx, const nn::Scaled& x,
                                                                   Rows needed) {
  return std::make_unique<AllGather>(ctx, group_, x, needed);
}

std::unique_ptr<nn::Redistribute::Sum> SequenceParallel::sum(nn::LayerContext& ctx, const TensorView& y,
                                                             const TensorView& residual, Order order) {
  if (order == Order::same) return std::make_unique<ReduceScatter>(ctx, group_, y, residual);
  return std::make_unique<ExchangeAndSum>(ctx, group_, y, residual);
}

}  // namespace hawser::parallel
