// `scale`: x = factor * x, in place. x act, dense.
#pragma once

#include "ops/run_op.h"

namespace hawser::ops {

struct Scale {
  TensorView x;
  double factor = 1;
};

void scale(Stream& stream, const Scale& args);

HAWSER_BACKENDS_OF(scale, Scale);

}  // namespace hawser::ops
