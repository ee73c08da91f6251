// CPU backend of the rotary embedding. Arguments are already checked.
#pragma once

#include "ops/rope/rope.h"

namespace hawser::ops {

constexpr std::int64_t kRopeMaxHeadDim = 1024;  // the sines and cosines of one token are on the stack

namespace cpu {

void rope(const Rope& args);

}  // namespace cpu
}  // namespace hawser::ops
