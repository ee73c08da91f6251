// CPU backend of the RMS norm. Arguments are already checked.
#pragma once

#include "ops/norm/rms_norm.h"

namespace hawser::ops {

// Number of blocks of rows over which dweight is summed; depends on T alone.
std::int64_t rms_norm_row_blocks(std::int64_t tokens);

namespace cpu {

void rms_norm_forward(const RmsNormForward& args);
void rms_norm_backward(const RmsNormBackward& args);

}  // namespace cpu
}  // namespace hawser::ops
