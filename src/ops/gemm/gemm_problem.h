// `GemmProblem`: a checked GEMM, as passed to the backends. The fused loss creates its own.
#pragma once

#include "ops/gemm/gemm.h"
#include "tensor/fp8.h"

namespace hawser::ops {

// C[m,n] (+)= scale_a * scale_b * op(A) op(B) + bias, row-major, as in gemm.h. lda, ldb, ldc: row strides in elements.
// scaling_a, scaling_b: of scales that are there.
struct GemmProblem {
  std::int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  const void* bias = nullptr;      // null: none
  const float* scale_a = nullptr;  // null: 1
  const float* scale_b = nullptr;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  DType in_a = DType::f32, in_b = DType::f32, out = DType::f32, bias_dtype = DType::f32;
  bool transpose_a = false, transpose_b = false;
  bool accumulate = false;
  ScaleKind scaling_a = ScaleKind::one, scaling_b = ScaleKind::one;

  bool scaled() const { return scale_a != nullptr || scale_b != nullptr; }
  bool scales_blocks() const { return scaling_a != ScaleKind::one || scaling_b != ScaleKind::one; }
  bool fp8() const { return is_fp8(in_a) || is_fp8(in_b); }
};

// The dtypes of A and B that tensor cores multiply.
inline bool supports_dtypes_cuda(const GemmProblem& p) {
  if (p.fp8()) return is_fp8(p.in_a) && is_fp8(p.in_b) && (p.in_a == DType::f8e4m3 || p.in_b == DType::f8e4m3);
  return p.in_a == p.in_b;
}

// The forms of scales that tensor cores have a GEMM for.
inline bool supports_scales_cuda(const GemmProblem& p) {
  if (!p.scaled()) return true;
  const bool blocks = p.scaling_a != ScaleKind::one && p.scaling_b != ScaleKind::one;
  const bool both_square = p.scaling_a == ScaleKind::block128 && p.scaling_b == ScaleKind::block128;
  return p.fp8() && (!p.scales_blocks() || (blocks && !both_square));
}

struct GemmCall {
  GemmProblem problem;
  std::byte* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
};

}  // namespace hawser::ops
