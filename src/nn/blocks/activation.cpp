#include "nn/blocks/activation.h"

#include "ops/activation/gated.h"
#include "ops/activation/gelu.h"
#include "ops/activation/tanh.h"

namespace hawser::nn {

namespace {

ops::Gelu gelu_of(Activation activation) {
  return activation == Activation::gelu ? ops::Gelu::exact : ops::Gelu::tanh;
}

ops::Gate gate_of(Activation activation) {
  if (activation == Activation::swiglu) return ops::Gate::silu;
  return activation == Activation::geglu ? ops::Gate::gelu : ops::Gate::gelu_tanh;
}

}  // namespace

void activate(LayerContext& ctx, Activation activation, const TensorView& x, const TensorView& y,
              const ops::Fp8Output& fp8) {
  HAWSER_CHECK(fp8.empty() || is_gated(activation), "an activation without a gate in FP8");
  switch (activation) {
    case Activation::swiglu:
    case Activation::geglu:
    case Activation::geglu_tanh:
      return ops::gated_forward(ctx.compute(), {.gate_up = x, .y = y, .kind = gate_of(activation), .fp8 = fp8});
    case Activation::gelu:
    case Activation::gelu_tanh:
      return ops::gelu_forward(ctx.compute(), {.x = x, .y = y, .kind = gelu_of(activation)});
    case Activation::tanh:
      return ops::tanh_forward(ctx.compute(), {.x = x, .y = y});
  }
}

void activate_backward(LayerContext& ctx, Activation activation, const TensorView& x, const TensorView& dy,
                       const TensorView& dx, const TensorView& y) {
  switch (activation) {
    case Activation::swiglu:
    case Activation::geglu:
    case Activation::geglu_tanh:
      return ops::gated_backward(ctx.compute(),
                                 {.gate_up = x, .dy = dy, .dgate_up = dx, .y = y, .kind = gate_of(activation)});
    case Activation::gelu:
    case Activation::gelu_tanh:
      return ops::gelu_backward(ctx.compute(), {.x = x, .dy = dy, .dx = dx, .y = y, .kind = gelu_of(activation)});
    case Activation::tanh:
      return ops::tanh_backward(ctx.compute(), {.x = x, .dy = dy, .dx = dx, .y = y});
  }
}

void activate_backward_fp8(LayerContext& ctx, Activation activation, const TensorView& x, const TensorView& dy,
                           const ops::Fp8Output& dx, const ops::Fp8Output& y) {
  HAWSER_CHECK(is_gated(activation), "an activation without a gate in FP8");
  ops::gated_backward(ctx.compute(),
                      {.gate_up = x, .dy = dy, .kind = gate_of(activation), .dgate_up_fp8 = dx, .y_fp8 = y});
}

}  // namespace hawser::nn
