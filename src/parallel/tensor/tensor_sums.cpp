#include "parallel/tensor/tensor_sums.h"

namespace hawser::parallel {

void TensorSums::sum(nn::LayerContext& ctx, const TensorView& data) {
  const TensorView flat = data.reshape({data.elements()});
  const std::int64_t bytes =
      comm::all_reduce_workspace(flat.elements(), flat.dtype(), group_.size(), ctx.exchange().target());
  ctx.exchange_after_compute();
  group_.all_reduce(ctx.exchange(), flat, comm::Reduction::sum, ctx.workspace(bytes));
  ctx.compute_after_exchange();
}

void TensorSums::gather(nn::LayerContext& ctx, const TensorView& part, const TensorView& all) {
  ctx.exchange_after_compute();
  group_.all_gather(ctx.exchange(), part.reshape({part.elements()}), all.reshape({all.elements()}));
  ctx.compute_after_exchange();
}

}  // namespace hawser::parallel
