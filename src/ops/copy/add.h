// y = a + b, element by element, in float32, rounded once.
//   a, b, y of one shape, each float32 or bf16; rows may be padded. y may be a or b (the same view), else apart.
#pragma once

#include "ops/common.h"

namespace hawser::ops {

struct Add {
  TensorView a, b, y;
};

void add(Stream& stream, const Add& args);

}  // namespace hawser::ops
