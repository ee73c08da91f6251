// CUDA backend of add_bias. Arguments are already checked.
#pragma once

#include "ops/bias/add_bias.h"
#include "ops/run_op.h"

namespace hawser::ops::cuda {

void add_bias(const CudaNative& native, const AddBias& args);

}  // namespace hawser::ops::cuda
