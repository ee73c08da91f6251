// Helpers that the layers of a block share.
#pragma once

#include "nn/layer.h"

namespace hawser::nn {

// One GEMM with its workspace from the context:
//   c (+)= op(a) op(b) [+ bias]
struct Gemm {
  TensorView a, b, c;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;
  TensorView bias;
};
void gemm(LayerContext&, const Gemm&);

// The gradients of y = x W^T + b. `bias` is -1 if there is none.
//   dW (+)= dy^T x
//   db (+)= column sums of dy
void linear_weight_gradient(LayerContext&, const TensorView& dy, const TensorView& x, GradientSink&, int weight,
                            int bias);

void rms_norm_gradient(LayerContext&, const TensorView& x, const TensorView& weight, const TensorView& rstd,
                       const TensorView& dy, const TensorView& residual_gradient, const TensorView& dx,
                       const GradientTarget& dweight);

// y += x + bias; bias [C] may be empty. The bias of a row-parallel GEMM belongs here: after the sum over ranks.
void add_residual(LayerContext&, const TensorView& x, const TensorView& y, const TensorView& bias);

// The normed rows that a layer's first GEMM reads. Saved by forward; or, if recompute writes them, until backward has
// read them; or absent, and backward recomputes them from rstd.
SavedSpec normed_spec(const SavePolicy& policy, bool recomputed, DType dtype, const Shape& shape);
// 1 / rms of each row. A delayed weight gradient recomputes the normed rows from it if they are not saved.
SavedSpec rstd_spec(const SavePolicy& policy, bool recomputed, std::int64_t rows);
SavedSpec saved_spec(const char* name, DType dtype, const Shape& shape, Pass writer, Pass last_reader);
SavedSpec unsaved_spec(const char* name);

}  // namespace hawser::nn
