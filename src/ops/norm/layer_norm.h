// `layer_norm_forward`, `layer_norm_backward`: layer norm over the channels of each token.
//
// forward:
//   mean[t] = mean over c of x[t,c];  rstd[t] = 1 / sqrt(mean over c of (x[t,c] - mean[t])^2 + epsilon)
//   y[t,c]  = (x[t,c] - mean[t]) * rstd[t] * weight[c] + bias[c]
// backward:
//   g[t,c]     = dy[t,c] * weight[c]
//   n[t,c]     = (x[t,c] - mean[t]) * rstd[t]
//   dx[t,c]    = rstd[t] * (g[t,c] - mean over c of g - n[t,c] * mean over c of (g n)) + residual_gradient[t,c]
//   dweight[c] (+)= sum over t of dy[t,c] * n[t,c]          (+= with accumulate_weight)
//   dbias[c]   (+)= sum over t of dy[t,c]                   (+= with accumulate_bias)
//
// x, y, dy, dx, residual_gradient [T, C] act, one dtype, rows may be padded; weight, bias [C] float32 or bf16, one
// dtype; statistics [2, T] float32: mean, rstd; dweight, dbias [C] float32 or bf16. Row sums are float64 on the CPU,
// float32 on CUDA, where the variance is that of the centred values.
// Optional: bias; in backward residual_gradient, dweight and dbias. Views are disjoint, except that dx may be dy or
// residual_gradient (the same view). On the CPU dweight and dbias are summed in order of t, on CUDA over
// blocks of rows, which depend on the sizes and the number of SMs.
// CUDA has fast kernels for rows of whole 16 bytes, at multiples of 16 bytes, of at most 64 KiB in forward and 16 KiB
// in backward (layer_norm_cuda.cu); others run in slower ones.
// Source: Ba, Kiros and Hinton, "Layer Normalization", 2016; torch.nn.functional.layer_norm.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

struct LayerNormForward {
  TensorView x, weight, bias, y, statistics;
  double epsilon = 1.0e-5;
};
void layer_norm_forward(Stream& stream, const LayerNormForward& args);

struct LayerNormBackward {
  TensorView x, weight, statistics, dy;
  TensorView residual_gradient;
  TensorView dx;
  TensorView dweight, dbias;
  bool accumulate_weight = false, accumulate_bias = false;
};
void layer_norm_backward(Stream& stream, const LayerNormBackward& args);

HAWSER_BACKENDS_OF(layer_norm_forward, LayerNormForward);
HAWSER_BACKENDS_OF(layer_norm_backward, LayerNormBackward);

}  // namespace hawser::ops
