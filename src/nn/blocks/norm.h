// `RmsNorm`: the norm of a layer, by its weight's index among the layer's parameters. Formulas and errors:
// ops/norm/rms_norm.h. x, y and their gradients [T, C] in LayerContext::dtype(), rstd float32 [T]; everything is
// enqueued on the compute stream.
#pragma once

#include "nn/layer.h"

namespace hawser::nn {

class RmsNorm {
 public:
  RmsNorm(int weight, double epsilon) : weight_(weight), epsilon_(epsilon) {}
  void forward(LayerContext&, const TensorView& x, const TensorView& y, const TensorView& rstd) const;
  // `saved`, the y that forward wrote, or if it is empty y once more, in a temporary.
  TensorView again(LayerContext&, const TensorView& x, const TensorView& rstd, const TensorView& saved) const;
  // dx = residual_gradient + the gradient of x; residual_gradient may be empty.
  void backward(LayerContext&, const TensorView& x, const TensorView& rstd, const TensorView& dy,
                const TensorView& residual_gradient, const TensorView& dx, GradientSink&) const;

 private:
  int weight_;
  double epsilon_;
};

}  // namespace hawser::nn
