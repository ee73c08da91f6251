// CPU backend of the RMS norm; arguments are checked.
#pragma once

#include "ops/norm/rms_norm.h"

namespace hawser::ops {

// How many blocks of rows the weight gradient is summed over: from T alone.
std::int64_t rms_norm_row_blocks(std::int64_t tokens);

namespace cpu {

void rms_norm_forward(const RmsNormForward& args);
void rms_norm_backward(const RmsNormBackward& args);

}  // namespace cpu
}  // namespace hawser::ops
