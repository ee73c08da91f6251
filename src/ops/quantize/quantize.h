// `quantize`, `dequantize`: a matrix in FP8 with one scale. `amax`, `scales_of_amaxes`, `delayed_scales`: where scales
// come from.
//
// quantize, with s = scale[0]:
//   q[t,c] = FP8 of x[t,c] * (1 / s)          transposed[c,t] = q[t,c]
//   used[0] = s                              what belongs to q, where a GEMM can read it (ops/gemm/gemm.h)
// so that s q is about x. The cast saturates (tensor/fp8.h); 1 / s is rounded to float32, the product too. Of the rows
// t with mask[t] != 0 (without a mask, of all):
//   amax[0]       = max(amax[0], |x[t,c]|)    NaN if an element or amax[0] is NaN
//   saturated[0] += number of elements with |x[t,c] * (1 / s)| beyond the largest FP8 value, or NaN. Exact below 2^24,
//                   and never below that again
// x [T, C] float32 or bf16, rows may be padded; q [T, C] and transposed [C, T] of one FP8 dtype, dense, at least one of
// them; scale [1] float32, positive; used, amax and saturated [1] float32, mask [T] int32: optional.
// row_count [1] int32, optional: rows t >= row_count[0] are neither read nor counted, and those of q and transposed are
// undefined, such as those after the last group of a grouped GEMM.
//
// dequantize:
//   y[t,c] = scale[0] * q[t,c], or of E matrices y[e,t,c] = scale[e] * q[e,t,c]
// q [T, C] or [E, T, C] FP8, y of the same shape float32 or bf16, both dense; scale [1] or [E] float32.
//
// amax:
//   out[0] = max(accumulate ? out[0] : 0, |x[t,c]| of the rows as above)
// x [T, C] or [N] float32 or bf16, rows may be padded; out [1] float32; row_count as above, with [T, C] only.
//
// The scale of an amax, with the largest value of the FP8 dtype and a margin in powers of two:
//   scale_of(amax) = max(amax * 2^margin / largest, 2^-126), with power_of_two rounded up to one
//
// scales_of_amaxes:
//   scales[i] = scale_of(amax[i]) if amax[i] is finite and not 0; else `otherwise`, or as it is without `otherwise`
// amax, scales [N] float32.
//
// delayed_scales: once a step, with rows i of x (i even) in E4M3 and rows of dy (i odd) in E5M2:
//   if (skip[0] == 0 or skip[0] == refreshes) and amax[i] is finite and not 0:
//     history[i] = amax[i], history[i, 0], ..., history[i, H-2]
//     scales[i]  = scale_of(most_recent ? amax[i] : max over history[i])
// So neither a step that is skipped for another reason than `refreshes`, nor an amax that is not finite, nor a matrix
// of zeros enters the history.
// amax, scales [N], history [N, H] float32; skip [1] int32.
//
// Source: "FP8 Formats for Deep Learning" (arXiv 2209.05433); delayed scaling as in Transformer Engine 2, which keeps
// an infinite amax in its history. Maxima do not depend on the order in which they are taken: all devices have the same
// bits.
#pragma once

#include <optional>

#include "ops/quantize/fp8_output.h"
#include "ops/run_op.h"
#include "tensor/fp8.h"

namespace hawser::ops {

// How scales follow from amaxes.
struct ScaleRule {
  int margin = 0;
  bool power_of_two = false;
};

struct Quantize {
  TensorView x, scale, q, transposed;
  TensorView used, mask, amax, saturated;
  TensorView row_count = {};

  Fp8Output output() const { return {scale, q, transposed, used, mask, amax, saturated, row_count}; }
};
void quantize(Stream& stream, const Quantize& args);

struct Dequantize {
  TensorView q, scale, y;
};
void dequantize(Stream& stream, const Dequantize& args);

struct Amax {
  TensorView x, mask, out;
  TensorView row_count = {};
  bool accumulate = false;
};
void amax(Stream& stream, const Amax& args);

struct ScalesOfAmaxes {
  TensorView amax, scales;
  DType dtype = DType::f8e4m3;
  ScaleRule rule;
  std::optional<float> otherwise;
};
void scales_of_amaxes(Stream& stream, const ScalesOfAmaxes& args);

struct DelayedScales {
  TensorView amax, history, scales, skip;
  bool most_recent = false;
  ScaleRule rule;
  std::int32_t refreshes = 0;
};
void delayed_scales(Stream& stream, const DelayedScales& args);

HAWSER_BACKENDS_OF(quantize, Quantize);
HAWSER_BACKENDS_OF(dequantize, Dequantize);
HAWSER_BACKENDS_OF(amax, Amax);
HAWSER_BACKENDS_OF(scales_of_amaxes, ScalesOfAmaxes);
HAWSER_BACKENDS_OF(delayed_scales, DelayedScales);

}  // namespace hawser::ops
