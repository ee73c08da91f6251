// `Activation`: the nonlinearity of an MLP. A gated one reads [T, 2F] (gate, then up) and writes [T, F]; another reads
// and writes [T, F]. All in LayerContext::dtype(), enqueued on the compute stream. Formulas and errors: ops/activation.
#pragma once

#include "nn/layer.h"

namespace hawser::nn {

enum class Activation { swiglu, gelu, gelu_tanh, geglu, geglu_tanh, tanh };

constexpr bool is_gated(Activation activation) {
  return activation == Activation::swiglu || activation == Activation::geglu || activation == Activation::geglu_tanh;
}
// `fp8`: in place of y, which is then empty; a gated activation only.
void activate(LayerContext&, Activation, const TensorView& x, const TensorView& y, const ops::Fp8Output& fp8 = {});
// dx from dy; dx may be x. `y`: empty, or receives the activation again; it may be dy.
void activate_backward(LayerContext&, Activation, const TensorView& x, const TensorView& dy, const TensorView& dx,
                       const TensorView& y);
// The same in FP8; `y` may be empty. A gated activation only.
void activate_backward_fp8(LayerContext&, Activation, const TensorView& x, const TensorView& dy,
                           const ops::Fp8Output& dx, const ops::Fp8Output& y);

}  // namespace hawser::nn
