// Implementations of the seams of tensor parallelism, for tests.
#pragma once

#include "comm/group.h"
#include "nn/layer.h"
#include "ops/copy/add.h"

namespace hawser::testing {

inline TensorView workspace_of(nn::LayerContext& ctx, std::int64_t bytes) {
  return bytes > 0 ? ctx.temp(DType::u8, {bytes}) : TensorView();
}

inline void all_reduce(nn::LayerContext& ctx, Stream& stream, comm::Group& group, const TensorView& data,
                       comm::Reduction reduction) {
  const TensorView flat = data.reshape({data.elements()});
  const std::int64_t bytes = comm::all_reduce_workspace(flat.elements(), flat.dtype(), group.size(), stream.target());
  group.all_reduce(stream, flat, reduction, workspace_of(ctx, bytes));
}

// On the exchange stream, as what SequenceParallel has begun before.
class TensorSums : public nn::TensorReduce {
 public:
  explicit TensorSums(comm::Group& group) : group_(group) {}
  void sum(nn::LayerContext& ctx, const TensorView& data) override {
    ctx.exchange_after_compute();
    all_reduce(ctx, ctx.exchange(), group_, data, comm::Reduction::sum);
    ctx.compute_after_exchange();
  }
  void gather(nn::LayerContext& ctx, const TensorView& part, const TensorView& all) override {
    ctx.exchange_after_compute();
    group_.all_gather(ctx.exchange(), part.reshape({part.elements()}), all.reshape({all.elements()}));
    ctx.compute_after_exchange();
  }

 private:
  comm::Group& group_;
};

// Without sequence parallelism: all-reduces.
class TensorParallel : public nn::Redistribute {
 public:
  explicit TensorParallel(comm::Group& group) : group_(group) {}
  std::unique_ptr<Sum> sum(nn::LayerContext& ctx, const TensorView& y, const TensorView& residual, Order) override {
    return std::make_unique<AllReduced>(ctx, group_, y, residual);
  }

 private:
  class AllReduced : public Sum {
   public:
    AllReduced(nn::LayerContext& ctx, comm::Group& group, const TensorView& y, const TensorView& residual)
        : ctx_(ctx), group_(group), y_(y), residual_(residual) {}
    int pieces() const override { return 1; }
    nn::RowTarget target(int) override { return {y_, 0}; }
    void written(int) override {}
    void finish() override {
      all_reduce(ctx_, ctx_.compute(), group_, y_, comm::Reduction::sum);
      if (!residual_.empty()) ops::add(ctx_.compute(), {.a = y_, .b = residual_, .y = y_});
    }

   private:
    nn::LayerContext& ctx_;
    comm::Group& group_;
    TensorView y_, residual_;
  };

  comm::Group& group_;
};

// With sequence parallelism. A gather's first piece is the rank's own rows, which the caller computes while the others
// arrive. A sum has a piece for each rank's rows, the own ones last if each rank may have its own order. Its
// reduce-scatter begins after the last piece, and runs while the layer computes what it enqueues before finish().
class SequenceParallel : public nn::Redistribute {
 public:
  explicit SequenceParallel(comm::Group& group) : group_(group) {}
  std::unique_ptr<Gather> gather(nn::LayerContext& ctx, const nn::Scaled& x) override {
    return std::make_unique<AllGather>(ctx, group_, x);
  }
  std::unique_ptr<Sum> sum(nn::LayerContext& ctx, const TensorView& y, const TensorView& residual,
                           Order order) override {
    return std::make_unique<ReduceScatter>(ctx, group_, y, residual, order);
  }
  bool overlaps() const override { return true; }

 private:
  // The rank whose rows are piece p.
  static int rank_of(const comm::Group& group, int p) { return (group.index() + p) % group.size(); }

  class AllGather : public Gather {
   public:
    AllGather(nn::LayerContext& ctx, comm::Group& group, const nn::Scaled& x)
        : ctx_(ctx), group_(group), x_(x), all_(ctx.temp(x.view.dtype(), {ctx.rows().full, x.view.size(1)})) {
      HAWSER_CHECK(x.view.size(0) * group.size() == all_.size(0), "gather of ", x.view.text());
      ctx.exchange_after_compute();
      group.all_gather(ctx.exchange(), x.view, all_);
    }
    int pieces() const override { return group_.size(); }
    nn::RowPiece wait(int p) override {
      const std::int64_t rows = x_.view.size(0), first = rank_of(group_, p) * rows;
      if (p == 0) return {x_, first};
      return {{all().view.rows(first, rows), x_.scale}, first};
    }
    nn::Scaled all() override {
      if (!waited_) ctx_.compute_after_exchange();
      waited_ = true;
      return {all_, x_.scale};
    }
    void finish() override {
      HAWSER_CHECK(!finished_, "a gather is finished twice");
      finished_ = true;
      all();
    }

   private:
    nn::LayerContext& ctx_;
    comm::Group& group_;
    nn::Scaled x_;
    TensorView all_;
    bool waited_ = false, finished_ = false;
  };

  class ReduceScatter : public Sum {
   public:
    ReduceScatter(nn::LayerContext& ctx, comm::Group& group, const TensorView& y, const TensorView& residual,
                  Order order)
        : ctx_(ctx),
          group_(group),
          y_(y),
          residual_(residual),
          order_(order),
          parts_(ctx.temp(y.dtype(), {ctx.rows().full, y.size(1)})) {
      HAWSER_CHECK(y.size(0) * group.size() == parts_.size(0), "sum of ", y.text());
    }
    int pieces() const override { return group_.size(); }
    nn::RowTarget target(int p) override {
      const std::int64_t rows = y_.size(0), first = (order_ == Order::same ? p : rank_of(group_, p + 1)) * rows;
      return {parts_.rows(first, rows), first};
    }
    void written(int p) override {
      if (p + 1 < pieces()) return;
      const std::int64_t bytes =
          comm::reduce_scatter_workspace(y_.elements(), y_.dtype(), group_.size(), ctx_.exchange().target());
      ctx_.exchange_after_compute();
      group_.reduce_scatter(ctx_.exchange(), parts_.reshape({parts_.elements()}), y_.reshape({y_.elements()}), false,
                            workspace_of(ctx_, bytes));
    }
    void finish() override {
      ctx_.compute_after_exchange();
      if (!residual_.empty()) ops::add(ctx_.compute(), {.a = y_, .b = residual_, .y = y_});
    }

   private:
    nn::LayerContext& ctx_;
    comm::Group& group_;
    TensorView y_, residual_;
    Order order_;
    TensorView parts_;
  };

  comm::Group& group_;
};

}  // namespace hawser::testing
