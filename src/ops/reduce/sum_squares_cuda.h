// CUDA backend of the norm and clip ops. Arguments are already checked.
#pragma once

#include "ops/reduce/sum_squares.h"

namespace hawser::ops::cuda {

void sum_squares(const CudaNative& native, const SumSquares& args);
void segment_sum_squares(const CudaNative& native, const SegmentSumSquares& args);
void clip_coefficient(const CudaNative& native, const ClipCoefficient& args);

}  // namespace hawser::ops::cuda
