#include "parallel/tensor/tensor_parallel.h"

#include <algorithm>

#include "base/units.h"
#include "ops/copy/add.h"

namespace hawser::parallel {

class TensorParallel::AllReduce : public Sum {
 public:
  AllReduce(nn::LayerContext& ctx, comm::Group& group, const TensorView& y, const TensorView& residual, int pieces)
      : ctx_(ctx), group_(group), y_(y), residual_(residual), pieces_(pieces), rows_(ceil_div(y.size(0), pieces)) {
    const std::int64_t bytes =
        comm::all_reduce_workspace(rows_ * y.size(1), y.dtype(), group.size(), ctx.exchange().target());
    // An all-reduce of few elements may need more than one of many.
    const std::int64_t last = comm::all_reduce_workspace((y.size(0) - (pieces - 1) * rows_) * y.size(1), y.dtype(),
                                                         group.size(), ctx.exchange().target());
    workspace_ = ctx.workspace(std::max(bytes, last));
  }

  int pieces() const override { return pieces_; }
  nn::RowTarget target(int p) override { return {piece(p), p * rows_}; }
  void written(int p) override {
    const TensorView rows = piece(p);
    ctx_.exchange_after_compute();
    group_.all_reduce(ctx_.exchange(), rows.reshape({rows.elements()}), comm::Reduction::sum, workspace_);
  }
  void finish() override {
    ctx_.compute_after_exchange();
    if (!residual_.empty()) ops::add(ctx_.compute(), {.a = y_, .b = residual_, .y = y_});
  }

 private:
  TensorView piece(int p) const { return y_.rows(p * rows_, std::min(rows_, y_.size(0) - p * rows_)); }

  nn::LayerContext& ctx_;
  comm::Group& group_;
  TensorView y_, residual_;
  int pieces_;
  std::int64_t rows_;  // of each piece but the last
  TensorView workspace_;
};

std::unique_ptr<nn::Redistribute::Sum> TensorParallel::sum(nn::LayerContext& ctx, const TensorView& y,
                                                           const TensorView& residual, Order) {
  const std::int64_t asked = std::clamp<std::int64_t>(y.size(0) / piece_rows_, 1, kPieces);
  // None is empty: of five rows in four pieces, three have two, two and one.
  const auto pieces = static_cast<int>(ceil_div(y.size(0), ceil_div(y.size(0), asked)));
  return std::make_unique<AllReduce>(ctx, group_, y, residual, pieces);
}

}  // namespace hawser::parallel
