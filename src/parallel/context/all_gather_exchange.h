// Context parallelism by gathering keys and values.
//
// Every rank of the context group holds some rows of each sequence (the chunk table says which). Forward gathers K and
// V of all ranks and puts them into sequence order; backward gathers them again, so that they live for one layer at a
// time, and scatters the sums of their gradients. Attention is the square part (a piece of a document against itself,
// local keys, needs no message) and rectangles (a document's earlier rows), which wait for the gather; key-value heads
// may be gathered in groups so that the first rectangle starts before the last key has arrived.
// Source: Llama 3 (arXiv 2407.21783) section 3.3.2; parts combined by log-sum-exp, see ops/attention/attention.h.
#pragma once

#include "comm/group.h"
#include "nn/seams.h"

namespace hawser::parallel {

class AllGatherExchange : public nn::AttentionExchange {
 public:
  // `group` outlives this. head_groups divides kv_heads, else the largest divisor below it is taken.
  explicit AllGatherExchange(comm::Group& group, int head_groups = 1) : group_(group), head_groups_(head_groups) {}

  std::unique_ptr<Session> forward(nn::LayerContext&, const TensorView& k, const TensorView& v) override;
  std::unique_ptr<Session> backward(nn::LayerContext&, const TensorView& k, const TensorView& v, const TensorView& dk,
                                    const TensorView& dv) override;

 private:
  comm::Group& group_;
  int head_groups_;
};

}  // namespace hawser::parallel
