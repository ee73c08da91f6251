// `HeadTransform`: what a head computes of its input before its last norm (BERT's masked-LM head).
//
//   y = activation(f W^T + b),   f = norm(x), or x
//
// x, f, y and their gradients [T, C] in LayerContext::dtype(), W [C, C]; T: RowCounts::residual, or the rows whose
// logits are computed. Every tensor rank has all of W and exchanges nothing: with sequence parallelism its gradients
// are parts of sums (set_unsliced). Nothing is saved. Everything is enqueued on the compute stream. Errors: those of
// Linear, Norm and activate.
#pragma once

#include <optional>

#include "nn/blocks/activation.h"
#include "nn/blocks/linear.h"
#include "nn/blocks/norm.h"

namespace hawser::nn {

struct HeadTransformConfig {
  std::string dense;  // name of the Linear, without ".weight" and ".bias"
  bool bias = true;
  Activation activation = Activation::gelu;  // one without a gate
  std::optional<NormConfig> norm_config;     // of f: the model's final norm, if it is not the last of the head
  std::string norm;
};

class HeadTransform {
 public:
  // Of one forward, in temporaries. f: x without a norm.
  struct Tensors {
    TensorView f, statistics, dense, y;
  };
  // Appends its parameters: W, b, and the norm's.
  HeadTransform(const HeadTransformConfig& config, std::int64_t width, double initial_std, std::vector<Param>& params);
  Tensors forward(LayerContext&, const TensorView& x) const;
  void backward(LayerContext&, const TensorView& x, const Tensors&, const TensorView& dy, const TensorView& dx,
                GradientSink&) const;
  double flops(std::int64_t rows) const;

 private:
  std::int64_t width_;
  Activation activation_;
  Linear dense_;
  std::optional<Norm> norm_;
};

}  // namespace hawser::nn
