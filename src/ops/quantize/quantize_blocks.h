// `quantize_blocks`: a matrix in FP8 with a scale for each block of 128 elements of a row, or of 128 x 128 elements.
//
// For each block B of x [R, C]:
//   amax(B)   = max of |x[r,c]| of its elements in rows with mask[r] != 0 (without a mask, in all)
//   s(B)      = scale_of(amax(B)) of ops/quantize/quantize.h; 1 if amax(B) is 0; NaN if it is not finite
//   q[r,c]    = FP8 of x[r,c] * (1 / s(B))
// The blocks of `q` are those of its ScaleKind: vec128: 128 elements of a row; block128: 128 x 128. So are those of
// `transposed` [C, R]: vec128: 128 elements of a column of x, scaled separately from q; block128: the same blocks.
//   transposed[c,r] = FP8 of x[r,c] * (1 / s(B'))
// The cast saturates (tensor/fp8.h); 1 / s is rounded to float32, the product too. So a block with a value that is not
// finite is NaN, and so are the GEMM's sums that read it.
// x [R, C] float32 or bf16, rows may be padded; q [R, C], transposed [C, R] of one FP8 dtype, dense, at least one of
// them, each with `scales` of scale_shape(kind, its rows, its columns); mask [R] int32, optional.
//
// Source: blocks as in DeepSeek-V3 (arXiv 2412.19437) and Transformer Engine's Float8BlockScaling, which has the scale
// 1 for an infinite amax. All devices have the same bits.
#pragma once

#include "ops/quantize/quantize.h"
#include "ops/quantize/scale_kind.h"

namespace hawser::ops {

struct QuantizeBlocks {
  TensorView x;
  ScaleKind kind = ScaleKind::vec128;  // not `one`
  TensorView q, scales;
  TensorView transposed, transposed_scales;
  TensorView mask = {};
  ScaleRule rule = {.margin = 0, .power_of_two = true};

  DType dtype() const { return (q.empty() ? transposed : q).dtype(); }
};
void quantize_blocks(Stream& stream, const QuantizeBlocks& args);

HAWSER_BACKENDS_OF(quantize_blocks, QuantizeBlocks);

}  // namespace hawser::ops
