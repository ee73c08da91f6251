// CPU backend of the matrix products; also called by other CPU backends (the fused loss) on their own memory.
#pragma once

#include "ops/gemm/gemm.h"

namespace hawser::ops::cpu {

// C[m, n] (+)= op(A) op(B) + bias, row-major with row strides in elements; `in` is the dtype of A and B.
struct Product {
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

// Bytes that multiply() needs for this product on this machine; with fewer it runs on fewer threads.
std::int64_t product_workspace(const Product& product);

// Runs on the calling thread's OpenMP team; bitwise the same for any size of it.
void multiply(const Product& product, std::byte* workspace, std::int64_t workspace_bytes);

void bias_gradient(const BiasGradient& args);

}  // namespace hawser::ops::cpu
