// Workspaces of the CPU backend of the grouped GEMMs.
#pragma once

#include "ops/gemm/grouped_gemm.h"

namespace hawser::ops::cpu {

std::int64_t grouped_workspace(const GroupedGemm& args);
std::int64_t grouped_workspace(const GroupedWeightGradient& args);

}  // namespace hawser::ops::cpu
