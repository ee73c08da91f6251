// CUDA backend of the GEMMs (cuBLASLt). Other CUDA backends (the fused loss) also call it.
#pragma once

#include <string>

#include "ops/gemm/gemm_problem.h"

namespace hawser::ops::cuda {

// Uses the first kGemmScratch bytes of the stream's scratch.
void multiply(const CudaNative& native, const GemmProblem& problem);
constexpr std::int64_t kGemmScratch = std::int64_t{32} << 20;

inline void gemm(const CudaNative& native, const GemmCall& call) {
  multiply(native, call.problem);
}
void bias_gradient(const CudaNative& native, const BiasGradient& args);

void prepare(const CudaNative& native, const GemmProblem& problem);
std::string choices(const CudaNative& native);
std::int64_t take_choices(const CudaNative& native, const std::string& text, bool keep);

// Fills a matrix with random normal numbers, for measurements. The gaps between its rows do not change.
void fill_random(const CudaNative& native, void* data, DType dtype, std::int64_t rows, std::int64_t columns,
                 std::int64_t stride, std::uint64_t seed);
// Fallback for GEMMs without a cuBLASLt algorithm: any shape, one dtype of A and B,
// no scales, one thread per element of C (slow).
//   C (+)= op(A) op(B) + bias
void multiply_simply(const CudaNative& native, const GemmProblem& problem);
// C (+)= bias, for every row. Without accumulate: C = bias, or 0 if there is none.
void set_rows(const CudaNative& native, const GemmProblem& problem);

}  // namespace hawser::ops::cuda
