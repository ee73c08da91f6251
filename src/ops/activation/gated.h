// `swiglu_forward`, `swiglu_backward`: SwiGLU, y = silu(gate) * up, with gate and up side by side in one matrix.
//
// forward, with gate = gate_up[t,f] and up = gate_up[t,F+f]:
//   y[t,f] = gate * sigmoid(gate) * up
// backward, with s = sigmoid(gate):
//   dup   = dy * gate * s
//   dgate = dy * up * s * (1 + gate * (1 - s))
//
// gate_up, dgate_up [T, 2F]; y, dy [T, F]; all act, one dtype; rows may be padded.
// backward: y is optional; if given, it is recomputed there for the weight gradient of the down projection.
// Aliasing: dgate_up may be gate_up (the same view), y may be dy (the same view); all other views are disjoint.
// Source: Shazeer, "GLU Variants Improve Transformer", 2020.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

struct SwigluForward {
  TensorView gate_up, y;
};

void swiglu_forward(Stream& stream, const SwigluForward& args);

struct SwigluBackward {
  TensorView gate_up, dy, dgate_up;
  TensorView y;
};

void swiglu_backward(Stream& stream, const SwigluBackward& args);

HAWSER_BACKENDS_OF(swiglu_forward, SwigluForward);
HAWSER_BACKENDS_OF(swiglu_backward, SwigluBackward);

}  // namespace hawser::ops
