// `add`: elementwise sum, y = a + b, computed in float32 and rounded once.
//
// a, b, y: one shape, each float32 or bf16; rows may be padded.
// Aliasing: y may be a or b (the same view); otherwise the views are disjoint.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

struct Add {
  TensorView a, b, y;
};

void add(Stream& stream, const Add& args);

HAWSER_BACKENDS_OF(add, Add);

}  // namespace hawser::ops
