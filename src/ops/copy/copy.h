// `copy`, `cast`, `fill`: elementwise copies, dtype conversion and constants.
//
//   copy:  y = x             one shape and one dtype (any); rows of both may be padded; disjoint
//   cast:  y = x, rounded    one shape, each float32 or bf16; rows may be padded; disjoint, or the same view
//   fill:  y[...] = value    float32, bf16 (rounded) or int32 (value must be exact); rows may be padded
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

struct Copy {
  TensorView x, y;
};
void copy(Stream& stream, const Copy& args);

struct Cast {
  TensorView x, y;
};
void cast(Stream& stream, const Cast& args);

struct Fill {
  TensorView y;
  double value = 0.0;
};
void fill(Stream& stream, const Fill& args);

HAWSER_BACKENDS_OF(copy, Copy);
HAWSER_BACKENDS_OF(cast, Cast);
HAWSER_BACKENDS_OF(fill, Fill);

}  // namespace hawser::ops
