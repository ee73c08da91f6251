// `ColumnParallelLinear`, `RowParallelLinear`: y = x W^T + b, with W [out, in] and b [out] of a layer's parameters, and
// its gradients. Layers call GEMMs through them. The two differ in what ranks that share a layer exchange (names as in
// Megatron-LM): a column-parallel Linear redistributes its input (Boundary::column_input, nn/seams.h), a row-parallel
// one its output (Boundary::row_output), so that its bias is added after the sum over ranks.
// x [T, in], y [T, out] and their gradients, in LayerContext::dtype(); everything is enqueued on the compute stream.
// `weight` and `bias` are indices of the layer's parameters; bias is -1 if there is none. Errors: those of ops::gemm.
#pragma once

#include "nn/layer.h"

namespace hawser::nn {

class ColumnParallelLinear {
 public:
  explicit ColumnParallelLinear(int weight, int bias = -1) : weight_(weight), bias_(bias) {}
  void forward(LayerContext&, const TensorView& x, const TensorView& y) const;
  // dx = dy W. Returns dx as the layer's rank needs it.
  TensorView input_gradient(LayerContext&, const TensorView& dy, const TensorView& dx) const;
  // dW (+)= dy^T x, db (+)= column sums of dy; x as in forward.
  void weight_gradient(LayerContext&, const TensorView& dy, const TensorView& x, GradientSink&) const;

 private:
  int weight_, bias_;
};

class RowParallelLinear {
 public:
  explicit RowParallelLinear(int weight, int bias = -1) : weight_(weight), bias_(bias) {}
  // y = residual + x W^T + b
  void forward(LayerContext&, const TensorView& x, const TensorView& residual, const TensorView& y) const;
  // The gradient of the output that the two functions below take.
  TensorView output_gradient(LayerContext&, const TensorView& dy) const;
  // dx = dz W
  void input_gradient(LayerContext&, const TensorView& dz, const TensorView& dx) const;
  // dW (+)= dz^T x, db (+)= column sums of dz
  void weight_gradient(LayerContext&, const TensorView& dz, const TensorView& x, GradientSink&) const;

 private:
  int weight_, bias_;
};

// One GEMM with its workspace from the context:
//   c (+)= [scale *] op(a) op(b) [+ bias]
struct Gemm {
  TensorView a, b, c;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;
  TensorView bias;
  TensorView scale;
};
void gemm(LayerContext&, const Gemm&);

}  // namespace hawser::nn
