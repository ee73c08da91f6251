// `SequenceParallel`: nn::Redistribute where the tensor ranks also divide the rows of the residual (Megatron-LM, arXiv
// 2205.05198). A gather is an all-gather of rows, and a sum a reduce-scatter, both in one piece for each rank.
//
// Example: rank 1 of four, R rows of the residual on each. In a gather the layer computes
//
//   piece 0: its own rows, R to 2R - 1, at once;  1: those of rank 2;  2: of rank 3;  3: of rank 0
//
// The exchange of piece p + 1 runs while it computes piece p. In a sum it computes
//
//   piece 0: the rows of rank 2, which are sent to it;  1: of rank 3;  2: of rank 0;  3: its own, to which the parts of
//   the other ranks are added
//
// and the exchange of piece p runs while it computes piece p + 1. So with two ranks everything but the addition of the
// parts (ops::sum_parts) and half a GEMM at each end overlaps with GEMMs. All exchanges are comm::Group::exchange: on a
// GPU they are copies without a kernel, and what they send is at equal offsets on all ranks.
//
// A sum with Order::same has its pieces in the order of the rows, and one reduce-scatter after the last one. Rounded
// inputs are gathered in FP8.
#pragma once

#include "comm/group.h"
#include "nn/layer.h"

namespace hawser::parallel {

class SequenceParallel : public nn::Redistribute {
 public:
  // `gathers_quantized`: false for comparisons; the bits are the same.
  explicit SequenceParallel(comm::Group& group, bool gathers_quantized = true)
      : group_(group), gathers_quantized_(gathers_quantized) {}
  std::unique_ptr<Gather> gather(nn::LayerContext& ctx, const nn::Scaled& x, Rows needed) override;
  std::unique_ptr<Sum> sum(nn::LayerContext& ctx, const TensorView& y, const TensorView& residual,
                           Order order) override;
  bool overlaps() const override { return true; }
  bool gathers_quantized() const override { return gathers_quantized_; }

 private:
  class AllGather;
  class ExchangeAndSum;
  class ReduceScatter;

  comm::Group& group_;
  bool gathers_quantized_;
};

}  // namespace hawser::parallel
