// CUDA backend of the RMS norm. Arguments are already checked. It does not use the workspace: partial sums are in the
// stream's scratch.
#pragma once

#include "ops/norm/rms_norm.h"

namespace hawser::ops::cuda {

void rms_norm_forward(const CudaNative& native, const RmsNormForward& args);
void rms_norm_backward(const CudaNative& native, const RmsNormBackward& args);

}  // namespace hawser::ops::cuda
