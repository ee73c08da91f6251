// `sum_squares`, `segment_sum_squares`, `clip_coefficient`: the global gradient norm and the clipping factor, computed
// on the device.
//
// sum_squares:
//   out[0] (+)= sum of x^2
// segment_sum_squares, with ends[-1] = 0:
//   out[s] (+)= sum over i in [ends[s-1], ends[s]) of x[i]^2
// x float32 or bf16, dense, any shape (segments: [n]); out [1] or [segments] float32. Sums are float64 over blocks that
// depend on the sizes alone, so that the number of threads does not change the result.
//
// clip_coefficient:
//   norm        = sqrt(sum_squares[0]) / loss_scale[0]
//   coefficient = min(1, max_norm / (norm + 1e-6)) / loss_scale[0]          (1 / loss_scale[0] if max_norm == 0)
// If the norm is not finite, coefficient is 0 and skip is set to 1; otherwise skip does not change.
// sum_squares, loss_scale, norm_out, coefficient [1] float32; skip [1] int32. loss_scale (default 1), norm_out and skip
// are optional.
// Source: torch.nn.utils.clip_grad_norm_.
#pragma once

#include <vector>

#include "ops/run_op.h"

namespace hawser::ops {

struct SumSquares {
  TensorView x, out;
  bool accumulate = false;
};
void sum_squares(Stream& stream, const SumSquares& args);

struct SegmentSumSquares {
  TensorView x;
  std::vector<std::int64_t> ends;  // ascending; the last is at most n
  TensorView out;
  bool accumulate = false;
};
void segment_sum_squares(Stream& stream, const SegmentSumSquares& args);

struct ClipCoefficient {
  TensorView sum_squares;
  TensorView loss_scale;
  double max_norm = 0.0;
  TensorView norm_out;
  TensorView coefficient;
  TensorView skip;
};
void clip_coefficient(Stream& stream, const ClipCoefficient& args);

HAWSER_BACKENDS_OF(sum_squares, SumSquares);
HAWSER_BACKENDS_OF(segment_sum_squares, SegmentSumSquares);
HAWSER_BACKENDS_OF(clip_coefficient, ClipCoefficient);

}  // namespace hawser::ops
