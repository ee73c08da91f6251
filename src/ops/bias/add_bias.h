// `add_bias`: adds a bias to every row, in place.
//
//   y[t,c] += bias[c]
//
// y [T, C] float32 or bf16, rows may be padded; bias [C] float32 or bf16. Computed in float32, rounded once.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

struct AddBias {
  TensorView y, bias;
};
void add_bias(Stream& stream, const AddBias& args);
HAWSER_BACKENDS_OF(add_bias, AddBias);

}  // namespace hawser::ops
