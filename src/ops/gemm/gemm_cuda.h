// CUDA backend of the GEMMs (cuBLASLt); also called by other CUDA backends (the fused loss).
#pragma once

#include <string>

#include "ops/gemm/gemm_problem.h"

namespace hawser::ops::cuda {

// Uses the first kProductScratch bytes of the stream's scratch.
void multiply(const CudaNative& native, const GemmProblem& problem);
constexpr std::int64_t kGemmScratch = std::int64_t{32} << 20;

inline void gemm(const CudaNative& native, const GemmCall& call) {
  multiply(native, call.problem);
}
void bias_gradient(const CudaNative& native, const BiasGradient& args);

void prepare(const CudaNative& native, const GemmProblem& problem);
std::string choices(const CudaNative& native);
std::int64_t take_choices(const CudaNative& native, const std::string& text);

// Random normal numbers into a matrix; the gaps between its rows stay. For measurements.
void fill_random(const CudaNative& native, void* data, DType dtype, std::int64_t rows, std::int64_t columns,
                 std::int64_t stride, std::uint64_t seed);
// C (+)= op(A) op(B) + bias for any shape and dtypes, one thread an element of C: what cuBLASLt has no algorithm for.
void multiply_simply(const CudaNative& native, const GemmProblem& problem);
// c (+)= bias, to every row; accumulate false: c = bias, or 0 where there is none.
void set_rows(const CudaNative& native, const GemmProblem& problem);

}  // namespace hawser::ops::cuda
