// `gated_forward`, `gated_backward`: gated linear units, y = act(gate) * up, with gate and up side by side in one
// matrix.
//
// forward, with gate = gate_up[t,f] and up = gate_up[t,F+f]:
//   y[t,f] = act(gate) * up
//     silu:       act(x) = x * sigmoid(x)                                                (SwiGLU)
//     gelu:       act(x) = x/2 * (1 + erf(x / sqrt(2)))                                  (GEGLU)
//     gelu_tanh:  act(x) = x/2 * (1 + tanh(u)),  u = sqrt(2/pi) * (x + 0.044715 x^3)     (GEGLU of Gemma)
// backward:
//   dup   = dy * act(gate)
//   dgate = dy * up * act'(gate)
//     silu, with s = sigmoid(x):  act'(x) = s * (1 + x * (1 - s))
//
// gate_up, dgate_up [T, 2F]; y, dy [T, F]; all act, one dtype; rows may be padded.
// In FP8, y is E4M3 and dgate_up E5M2; on CUDA they have kernels of their own (gated_fp8_cuda.cu).
// backward: y is optional; if given, it is recomputed there for the weight gradient of the down projection.
// Aliasing: dgate_up may be gate_up (the same view), y may be dy (the same view); all other views are disjoint.
// Op records are named swiglu or geglu.
// Source: Shazeer, "GLU Variants Improve Transformer", 2020; ops/activation/gelu.h for GELU without a gate.
#pragma once

#include "ops/quantize/fp8_output.h"
#include "ops/run_op.h"

namespace hawser::ops {

enum class Gate { silu, gelu, gelu_tanh };

struct GatedForward {
  TensorView gate_up, y;
  Gate kind = Gate::silu;
  Fp8Output fp8 = {};  // in place of y, which is then empty
};

void gated_forward(Stream& stream, const GatedForward& args);

struct GatedBackward {
  TensorView gate_up, dy, dgate_up;
  TensorView y;
  Gate kind = Gate::silu;
  Fp8Output dgate_up_fp8 = {},
            y_fp8 = {};  // in place of dgate_up, which is then empty, and of y; y_fp8 needs the other
};

void gated_backward(Stream& stream, const GatedBackward& args);

// Calls body with the kind as an integral constant.
template <class Body>
void dispatch_gate(Gate kind, const Body& body) {
  switch (kind) {
    case Gate::silu:
      return body(std::integral_constant<Gate, Gate::silu>());
    case Gate::gelu:
      return body(std::integral_constant<Gate, Gate::gelu>());
    case Gate::gelu_tanh:
      return body(std::integral_constant<Gate, Gate::gelu_tanh>());
  }
}

HAWSER_BACKENDS_OF(gated_forward, GatedForward);
HAWSER_BACKENDS_OF(gated_backward, GatedBackward);

}  // namespace hawser::ops
