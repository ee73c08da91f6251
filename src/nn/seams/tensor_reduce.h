// `TensorReduce`: the seam of tensor parallelism for small tensors that each tensor rank has computed from its part of
// something: it all-reduces or all-gathers them.
//
// Example: the vocabulary is sliced over two tensor ranks, and each has half of the logits of 4 rows. The loss needs
// the maximum of each row over both halves:
//
//   ...                                               // maxima [4]: of this rank's columns
//   ctx.seams().tensor_reduce->maximum(ctx, maxima);  // of all columns, on both ranks
//
// The default implementation is one device: sum() and maximum() do nothing, and gather() copies. Gradients of
// parameters are reduced elsewhere (program::Op::reduce). nn/seams.h says what holds for all seams.
#pragma once

#include "tensor/tensor.h"

namespace hawser::nn {

class LayerContext;

class TensorReduce {
 public:
  virtual ~TensorReduce() = default;
  // All-reduces `data` in place. Its backward is the identity.
  virtual void sum(LayerContext&, const TensorView& data) { (void)data; }
  // All-reduces `data` in place. It has no gradient.
  virtual void maximum(LayerContext&, const TensorView& data) { (void)data; }
  // all [ranks * R, C] = the parts [R, C] of the ranks, one after another. `part` may be this rank's own part of `all`.
  // It has no gradient.
  virtual void gather(LayerContext&, const TensorView& part, const TensorView& all);
};

}  // namespace hawser::nn
