// CUDA backend of the initial values. Arguments are already checked.
#pragma once

#include "ops/seed/init.h"

namespace hawser::ops::cuda {

void random_normal(const CudaNative& native, const RandomNormal& args);

}  // namespace hawser::ops::cuda
