// Context parallelism by gathering keys and values.
//
// Every rank of the context group holds some rows of each sequence (the chunk table says which). Forward gathers K and
// V of all ranks and puts them into sequence order; backward gathers them again, so that they live for one layer at a
// time, and scatters the sums of their gradients. Attention is the diagonal part (a piece of a document against itself,
// local keys, needs no message) and off-diagonal blocks (a document's earlier rows), which wait for the gather; key-value heads
// may be gathered in groups so that the first off-diagonal block starts before the last key has arrived, and the sums of its
// gradients travel while the next is worked on. Where sequences are one document each in a zig-zag
// (nn::BatchViews::uniform_diagonal), the off-diagonal blocks of a rank's two chunks are two batches of equal places.
//
// Gradients of gathered keys travel in `reduce_dtype`. float32: what attention gives is summed as it is. bf16 (with bf16
// compute): each rank's share, a sum over its queries, is rounded once, and once more in between where both of its
// chunks see the key; the shares are added in float32 in the order of the ranks, and that sum to the local keys' own.
// Source: Llama 3 (arXiv 2407.21783) section 3.3.2; parts combined by log-sum-exp, see ops/attention/attention.h.
#pragma once

#include "comm/group.h"
#include "nn/seams.h"

namespace hawser::parallel {

class AllGatherExchange : public nn::AttentionExchange {
 public:
  // `group` outlives this. head_groups divides kv_heads, else the largest divisor below it is taken.
  explicit AllGatherExchange(comm::Group& group, int head_groups = 1, DType reduce_dtype = DType::f32)
      : group_(group), head_groups_(head_groups), reduce_dtype_(reduce_dtype) {}

  std::unique_ptr<Session> forward(nn::LayerContext&, const TensorView& k, const TensorView& v) override;
  std::unique_ptr<Session> backward(nn::LayerContext&, const TensorView& k, const TensorView& v, const TensorView& dk,
                                    const TensorView& dv) override;

 private:
  comm::Group& group_;
  int head_groups_;
  DType reduce_dtype_;
};

}  // namespace hawser::parallel
