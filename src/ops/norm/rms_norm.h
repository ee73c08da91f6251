// `rms_norm_forward`, `rms_norm_backward`: root-mean-square norm over the channels of each row.
//
// factor[c] = weight[c], or with unit_offset 1 + weight[c], a float32 sum.
// forward:
//   rstd[t] = 1 / sqrt(mean over c of x[t,c]^2 + epsilon)
//   y[t,c]  = x[t,c] * rstd[t] * factor[c]
// backward:
//   g[t,c]     = dy[t,c] * factor[c]
//   n[t,c]     = x[t,c] * rstd[t]
//   dx[t,c]    = rstd[t] * (g[t,c] - n[t,c] * mean over c of (g n)) + residual_gradient[t,c]
//   dweight[c] (+)= sum over t of dy[t,c] * n[t,c]          (+= with accumulate_weight)
//
// x, y, dy, dx, residual_gradient [T, C] act, one dtype, rows may be padded; weight [C] float32 or bf16;
// rstd [T] float32; dweight [C] float32 or bf16. Rows may also be heads inside the rows of wider matrices: x and the
// like [T, H, C] with any stride from token to token, C at most kRmsNormMaxHeadDim, and rstd [T, H]; in the formulas t
// is then one of the T * H heads.
// Aliasing: y may be x; dx may be dy or residual_gradient (the same view); otherwise the views are disjoint.
// Optional in backward: residual_gradient, and one of dx and dweight (it is then not computed).
// dweight is summed over blocks of rows, in order. The blocks depend on the sizes (CUDA: also on the number of SMs).
// CUDA has fast kernels for rows of whole 16 bytes, at multiples of 16 bytes, of at most 64 KiB in forward and 32 KiB
// in backward (rms_norm_cuda.cu), and for such heads of at most 1 KiB (rms_norm_heads_cuda.cu). Others run in slower
// ones. y in FP8 takes one pass over x for bf16 rows of at most 8,192 channels, if T is a multiple of 16 and all
// tensors are aligned (rms_norm_fp8_cuda.cu), otherwise two.
// Source: Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019. Rounding as LlamaRMSNorm of transformers in
// float32; with bf16, everything is float32 until y is rounded once. unit_offset: Gemma3RMSNorm.
#pragma once

#include "ops/quantize/fp8_output.h"
#include "ops/run_op.h"

namespace hawser::ops {

struct RmsNormForward {
  TensorView x, weight, y, rstd;
  double epsilon = 1.0e-5;
  bool unit_offset = false;
  Fp8Output fp8 = {};  // E4M3, in place of y, which is then empty; x [T, C]
};

void rms_norm_forward(Stream& stream, const RmsNormForward& args);

struct RmsNormBackward {
  TensorView x, weight, rstd, dy;
  TensorView residual_gradient;
  TensorView dx;
  TensorView dweight;
  bool accumulate_weight = false;
  TensorView workspace;  // u8 [rms_norm_backward_workspace(rows, C)], rows T or T * H; needed with dweight only
  bool unit_offset = false;
};

void rms_norm_backward(Stream& stream, const RmsNormBackward& args);

std::int64_t rms_norm_backward_workspace(std::int64_t rows, std::int64_t channels);

constexpr std::int64_t kRmsNormMaxHeadDim = 1024;  // on CUDA, a warp has the channels of a head in registers

// Number of blocks of rows over which the CPU sums dweight; depends on their number alone.
std::int64_t rms_norm_row_blocks(std::int64_t rows);
HAWSER_BACKENDS_OF(rms_norm_forward, RmsNormForward);
HAWSER_BACKENDS_OF(rms_norm_backward, RmsNormBackward);

}  // namespace hawser::ops
