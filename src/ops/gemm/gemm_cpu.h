// CPU backend of the matrix products; also called by other CPU backends (the fused loss) on their own memory.
#pragma once

#include "ops/gemm/product.h"

namespace hawser::ops::cpu {

// Bytes that multiply() needs for this product on this machine; with fewer it runs on fewer threads.
std::int64_t product_workspace(const Product& product);

// Runs on the calling thread's OpenMP team; bitwise the same for any size of it.
void multiply(const Product& product, std::byte* workspace, std::int64_t workspace_bytes);

inline void gemm(const ProductCall& call) {
  multiply(call.product, call.workspace, call.workspace_bytes);
}

void bias_gradient(const BiasGradient& args);

}  // namespace hawser::ops::cpu
