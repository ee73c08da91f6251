// What the blocks' layers share.
#pragma once

#include "nn/layer.h"

namespace hawser::nn {

// c (+)= op(a) op(b) [+ bias]: one GEMM with its workspace out of the context.
struct Gemm {
  TensorView a, b, c;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;
  TensorView bias;
};
void gemm(LayerContext&, const Gemm&);

// The gradients of y = x W^T + b: dW (+)= dy^T x, db (+)= column sums of dy. `bias` is -1 where there is none.
void linear_weight_gradient(LayerContext&, const TensorView& dy, const TensorView& x, GradientSink&, int weight,
                            int bias);

void rms_norm_gradient(LayerContext&, const TensorView& x, const TensorView& weight, const TensorView& rstd,
                       const TensorView& dy, const TensorView& residual_gradient, const TensorView& dx,
                       const GradientTarget& dweight);

// y += x + bias, the bias [C] where there is one. Biases behind a row-parallel GEMM belong here: after the sum.
void add_residual(LayerContext&, const TensorView& x, const TensorView& y, const TensorView& bias);

// The normed rows that a layer's first product reads: kept from forward; or, where recompute makes them, until backward
// has read them; or absent: backward makes them again with rstd.
Slot normed_slot(const SavePolicy& policy, bool recomputed, DType dtype, const Shape& shape);
// 1 / rms of the rows. Where the normed rows are not kept for a delayed weight gradient, it makes them again with this.
Slot rstd_slot(const SavePolicy& policy, bool recomputed, std::int64_t rows);
Slot kept(const char* name, DType dtype, const Shape& shape, Pass writer, Pass last_reader);
Slot absent(const char* name);

}  // namespace hawser::nn
