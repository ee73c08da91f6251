// `transpose`: y[c, r] = x[r, c]. x [R, C] and y [C, R], or each of x [G, R, C] and y [G, C, R]; dense, of one dtype
// with elements of 1, 2 or 4 bytes; they do not overlap.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

struct Transpose {
  TensorView x, y;
};

void transpose(Stream& stream, const Transpose& args);

HAWSER_BACKENDS_OF(transpose, Transpose);

}  // namespace hawser::ops
