// Moving elements.
//
// copy:  y = x;                 one dtype (any), one shape, rows of both may be padded; apart
// cast:  y = x, rounded once;   x, y float32 or bf16, one shape, rows may be padded; apart, or the same view
// fill:  y[...] = value;        float32 or bf16 (rounded), int32 (an exact integer); rows may be padded
#pragma once

#include "ops/common.h"

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

}  // namespace hawser::ops
