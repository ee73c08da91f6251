// `TensorSums`: nn::TensorReduce over a tensor group. Its collectives are on the exchange stream, after those that
// Redistribute has enqueued there, and the compute stream waits for them: what it sums and gathers is small.
#pragma once

#include "comm/group.h"
#include "nn/layer.h"

namespace hawser::parallel {

class TensorSums : public nn::TensorReduce {
 public:
  explicit TensorSums(comm::Group& group) : group_(group) {}
  void sum(nn::LayerContext& ctx, const TensorView& data) override;
  void gather(nn::LayerContext& ctx, const TensorView& part, const TensorView& all) override;

 private:
  comm::Group& group_;
};

}  // namespace hawser::parallel
