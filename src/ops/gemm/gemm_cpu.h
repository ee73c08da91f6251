// CPU backend of the GEMMs. Other CPU backends (the fused loss) also call it on their own memory.
#pragma once

#include "ops/gemm/gemm_problem.h"

namespace hawser::ops::cpu {

// Bytes of workspace that multiply() needs for this GEMM on this machine; with fewer it uses fewer threads.
std::int64_t problem_workspace(const GemmProblem& problem);

// Runs on the calling thread's OpenMP team. The size of the team does not change a bit of the result.
void multiply(const GemmProblem& problem, std::byte* workspace, std::int64_t workspace_bytes);

void gemm(const GemmCall& call);

void bias_gradient(const BiasGradient& args);

}  // namespace hawser::ops::cpu
