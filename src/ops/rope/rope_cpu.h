// CPU backend of the rotary embedding; arguments are checked.
#pragma once

#include "ops/rope/rope.h"

namespace hawser::ops {

constexpr std::int64_t kRopeMaxHeadDim = 1024;  // sines and cosines of one token lie on the stack

namespace cpu {

void rope(const Rope& args);

}  // namespace cpu
}  // namespace hawser::ops
