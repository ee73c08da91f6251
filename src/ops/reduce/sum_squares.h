// The global gradient norm and the clipping factor, never leaving the device.
//
// sum_squares:          out[0] = sum of x^2, or +=
// segment_sum_squares:  out[s] = sum over i in [ends[s-1], ends[s]) of x[i]^2, or +=      (ends[-1] = 0)
//   x float32 or bf16, dense, any shape (segments: [n]); out [1] or [segments] float32. Sums are float64 over blocks
//   fixed by the sizes: the same for any number of threads.
// clip_coefficient:     norm = sqrt(sum_squares[0]);  coefficient = min(1, max_norm / (norm + 1e-6)), 1 where max_norm
// == 0
//   A norm that is not finite gives coefficient 0 and sets skip to 1; else skip is left as it is.
//   sum_squares, norm_out, coefficient [1] float32; skip [1] int32. norm_out and skip are optional.
// Source: torch.nn.utils.clip_grad_norm_.
#pragma once

#include <vector>

#include "ops/common.h"

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
  double max_norm = 0.0;
  TensorView norm_out;
  TensorView coefficient;
  TensorView skip;
};
void clip_coefficient(Stream& stream, const ClipCoefficient& args);

}  // namespace hawser::ops
