// CPU backend of SwiGLU. Arguments are already checked.
#pragma once

#include "ops/activation/swiglu.h"

namespace hawser::ops::cpu {

void swiglu_forward(const SwigluForward& args);
void swiglu_backward(const SwigluBackward& args);

}  // namespace hawser::ops::cpu
