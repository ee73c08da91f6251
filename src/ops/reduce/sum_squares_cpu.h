// CPU backend of the norm and clip ops. Arguments are already checked.
#pragma once

#include "ops/reduce/sum_squares.h"

namespace hawser::ops::cpu {

void sum_squares(const SumSquares& args);
void segment_sum_squares(const SegmentSumSquares& args);
void clip_coefficient(const ClipCoefficient& args);

}  // namespace hawser::ops::cpu
