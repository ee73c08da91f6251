// CUDA backend of AdamW. Arguments are already checked.
#pragma once

#include "ops/adamw/adamw.h"

namespace hawser::ops::cuda {

void adamw(const CudaNative& native, const AdamW& args);

}  // namespace hawser::ops::cuda
