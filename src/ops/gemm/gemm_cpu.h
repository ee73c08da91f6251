// CPU backend of the GEMMs; also called by other CPU backends (the fused loss) on their own memory.
#pragma once

#include "ops/gemm/gemm_problem.h"

namespace hawser::ops::cpu {

// Bytes that multiply() needs for this product on this machine; with fewer it runs on fewer threads.
std::int64_t problem_workspace(const GemmProblem& problem);

// Runs on the calling thread's OpenMP team; bitwise the same for any size of it.
void multiply(const GemmProblem& problem, std::byte* workspace, std::int64_t workspace_bytes);

inline void gemm(const GemmCall& call) {
  multiply(call.problem, call.workspace, call.workspace_bytes);
}

void bias_gradient(const BiasGradient& args);

}  // namespace hawser::ops::cpu
