// CUDA backend of the rotary embedding. Arguments are already checked.
#pragma once

#include "ops/rope/rope.h"

namespace hawser::ops::cuda {

void rope(const CudaNative& native, const Rope& args);

}  // namespace hawser::ops::cuda
