// CUDA backend of the RMS norm; arguments are checked. The workspace is not used: partial sums lie in the stream's
// scratch.
#pragma once

#include "ops/norm/rms_norm.h"

namespace hawser::ops::cuda {

void rms_norm_forward(const CudaNative& native, const RmsNormForward& args);
void rms_norm_backward(const CudaNative& native, const RmsNormBackward& args);

}  // namespace hawser::ops::cuda
