// `gelu_forward`, `gelu_backward`: GELU, y = x * P(N(0, 1) <= x), exact or approximated by tanh.
//
//   exact:  y = x/2 * (1 + erf(x / sqrt(2)))
//   tanh:   y = x/2 * (1 + tanh(u)),  u = sqrt(2/pi) * (x + 0.044715 x^3)
//   dx = dy * dy/dx
//
// x, y, dy, dx [T, F] act, one dtype, rows may be padded.
// backward: y is optional; if given, it is recomputed there for the weight gradient of the down projection.
// Aliasing: dx may be x (the same view), y may be dy (the same view); all other views are disjoint.
// Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016; torch.nn.functional.gelu.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

enum class Gelu { exact, tanh };

struct GeluForward {
  TensorView x, y;
  Gelu kind = Gelu::exact;
};
void gelu_forward(Stream& stream, const GeluForward& args);

struct GeluBackward {
  TensorView x, dy, dx;
  TensorView y;
  Gelu kind = Gelu::exact;
};
void gelu_backward(Stream& stream, const GeluBackward& args);

HAWSER_BACKENDS_OF(gelu_forward, GeluForward);
HAWSER_BACKENDS_OF(gelu_backward, GeluBackward);

}  // namespace hawser::ops
