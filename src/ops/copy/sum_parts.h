// `sum_parts`: the sum of the parts that ranks have computed of a matrix, and a residual.
//
//   y = residual + round(parts[0] + parts[1] + ...)
//
// The parts are added in their order in float32, and the sum is rounded once to y's dtype, as reduce-scatters do
// (comm/group.h); adding the residual rounds again. With two parts of one row each and without a residual, parts
// [2, C] gives y [1, C].
//
// parts [P * R, C]: P matrices [R, C], one after another. residual [R, C], or empty: none. y [R, C]. float32 or bf16,
// all of one dtype and dense.
// Aliasing: y may be residual (the same view); otherwise the views are disjoint.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

struct SumParts {
  TensorView parts, residual, y;
};

void sum_parts(Stream& stream, const SumParts& args);

HAWSER_BACKENDS_OF(sum_parts, SumParts);

}  // namespace hawser::ops
