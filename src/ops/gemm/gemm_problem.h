// `GemmProblem`: a checked GEMM, as passed to the backends. The fused loss creates its own.
#pragma once

#include "ops/gemm/gemm.h"

namespace hawser::ops {

// C[m,n] (+)= op(A) op(B) + bias, row-major. lda, ldb, ldc: row strides in elements. `in`: the dtype of A and B.
struct GemmProblem {
  std::int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;  // null: none
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  DType in = DType::f32, out = DType::f32, bias_dtype = DType::f32;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;
};

struct GemmCall {
  GemmProblem problem;
  const float* scale = nullptr;  // null: 1
  std::byte* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
};

}  // namespace hawser::ops
