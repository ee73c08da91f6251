// CPU backend of the initial values. Arguments are already checked.
#pragma once

#include "ops/seed/init.h"

namespace hawser::ops::cpu {

void random_normal(const RandomNormal& args);

}  // namespace hawser::ops::cpu
