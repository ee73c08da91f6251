// `TensorReduce`: the seam of tensor parallelism for what is not rows of the residual: it all-reduces or all-gathers
// what each tensor rank has computed of a tensor.
//
// Example: the vocabulary is sliced over two tensor ranks, and each has half of the logits of 4 rows. Of each row the
// loss needs the maximum, the sum and the label's logit over both halves (nn/blocks/sliced_loss.h):
//
//   ...                                                         // statistics float32 [3, 4]: of this rank's columns
//   ctx.seams().tensor_reduce->gather(ctx, statistics, parts);  // parts [6, 4]: those of rank 0, then of rank 1
//   ...                                                         // each rank combines them
//
// Attention that every tensor rank computes completely gathers its rows of q, k and v, and in backward the gradient of
// its output; generation gathers the logits. All
// tensors are dense, in float32 or in the compute dtype. The default implementation is one device: sum() does nothing,
// and gather() copies. Gradients of parameters are reduced elsewhere (program::Op::reduce). nn/seams.h says what holds
// for all seams.
#pragma once

#include "tensor/tensor.h"

namespace hawser::nn {

class LayerContext;

class TensorReduce {
 public:
  virtual ~TensorReduce() = default;
  // All-reduces `data` in place. Its backward is the identity.
  virtual void sum(LayerContext&, const TensorView& data) { (void)data; }
  // all [ranks * R, C] = the parts [R, C] of the ranks, one after another. `part` may be this rank's own part of `all`.
  // It has no gradient.
  virtual void gather(LayerContext&, const TensorView& part, const TensorView& all);
};

}  // namespace hawser::nn
