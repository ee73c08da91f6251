// CUDA backend of the grouped GEMMs: what its parts share.
#pragma once

#include "ops/cuda/kernel.cuh"
#include "ops/gemm/grouped_gemm.h"

namespace hawser::ops::cuda {

// A checked call of grouped_gemm (C [R, n] = A [R, k] op(B[g])) or grouped_weight_gradient (C[g] [m, n] = A^T B, k =
// R). FP8: transpose_b, or A^T [m, R] and B^T [n, R] are stored.
// lda, ldb, ldc: row strides in elements.
struct GroupedProblem {
  std::int64_t m = 0, n = 0, k = 0, groups = 0;
  std::int64_t rows = 0;  // R
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  const std::int32_t* offsets = nullptr;
  const float *scale_a = nullptr, *scale_b = nullptr;  // of FP8; null: 1
  bool scale_b_each = false;                           // one for each group
  DType in = DType::bf16, out = DType::bf16;           // in: of A
  bool by_rows = true;                                 // grouped_gemm
  bool transpose_b = false;
  bool accumulate = false;
};

// True if `value` may follow `before` as offsets[at]; otherwise the thread with `report` writes a fault.
__device__ __forceinline__ bool check_offset(CudaFault* fault, std::int32_t value, std::int32_t before, std::int64_t at,
                                             std::int64_t rows, bool report) {
  const bool good = value >= before && value <= rows && value % kGroupRows == 0 && (at > 0 || value == 0);
  if (!good && report) report_fault(fault, CudaFault::group_offset, value, at, rows);
  return good;
}

// On tensor cores of compute capability 9.0. bf16 operands; rows of all tensors start at multiples of 16 bytes and no
// dim is 0.
void multiply_on_hopper(const CudaNative& native, const GroupedProblem& problem);
// The same of FP8: A E4M3, or E5M2, which it always is if not by_rows; B E4M3.
void multiply_fp8_on_hopper(const CudaNative& native, const GroupedProblem& problem);

// The same on any tensor cores from compute capability 8.0 on, of FP8 from 8.9 on (mma instructions). n is a multiple of
// 8; bf16: so is k if by_rows, and otherwise m.
void multiply_with_mma(const CudaNative& native, const GroupedProblem& problem);
void multiply_fp8_with_mma(const CudaNative& native, const GroupedProblem& problem);

}  // namespace hawser::ops::cuda
