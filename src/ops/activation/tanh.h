// `tanh_forward`, `tanh_backward`: the hyperbolic tangent as an activation.
//
//   y  = tanh(x)
//   dx = dy * (1 - tanh(x)^2)
//
// x, y, dy, dx [T, F] act, one dtype, rows may be padded.
// backward: y is optional; if given, it is recomputed there for the weight gradient of the next Linear.
// Aliasing: dx may be x (the same view), y may be dy (the same view); all other views are disjoint.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

struct TanhForward {
  TensorView x, y;
};
void tanh_forward(Stream& stream, const TanhForward& args);

struct TanhBackward {
  TensorView x, dy, dx;
  TensorView y;
};
void tanh_backward(Stream& stream, const TanhBackward& args);

HAWSER_BACKENDS_OF(tanh_forward, TanhForward);
HAWSER_BACKENDS_OF(tanh_backward, TanhBackward);

}  // namespace hawser::ops
