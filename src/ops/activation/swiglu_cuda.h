// CUDA backend of SwiGLU. Arguments are already checked.
#pragma once

#include "ops/activation/swiglu.h"

namespace hawser::ops::cuda {

void swiglu_forward(const CudaNative& native, const SwigluForward& args);
void swiglu_backward(const CudaNative& native, const SwigluBackward& args);

}  // namespace hawser::ops::cuda
