#include "nn/blocks/activation.h"

#include "ops/activation/gelu.h"
#include "ops/activation/swiglu.h"

namespace hawser::nn {

namespace {
ops::Gelu gelu_of(Activation activation) {
  return activation == Activation::gelu ? ops::Gelu::exact : ops::Gelu::tanh;
}
}  // namespace

void activate(LayerContext& ctx, Activation activation, const TensorView& x, const TensorView& y) {
  switch (activation) {
    case Activation::swiglu:
      return ops::swiglu_forward(ctx.compute(), {.gate_up = x, .y = y});
    case Activation::gelu:
    case Activation::gelu_tanh:
      return ops::gelu_forward(ctx.compute(), {.x = x, .y = y, .kind = gelu_of(activation)});
  }
}

void activate_backward(LayerContext& ctx, Activation activation, const TensorView& x, const TensorView& dy,
                       const TensorView& dx, const TensorView& y) {
  switch (activation) {
    case Activation::swiglu:
      return ops::swiglu_backward(ctx.compute(), {.gate_up = x, .dy = dy, .dgate_up = dx, .y = y});
    case Activation::gelu:
    case Activation::gelu_tanh:
      return ops::gelu_backward(ctx.compute(), {.x = x, .dy = dy, .dx = dx, .y = y, .kind = gelu_of(activation)});
  }
}

}  // namespace hawser::nn
