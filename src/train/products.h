// The matrix products of a step, by shape: to choose algorithms for them before the first step, and to measure what a
// step could at best take.
#pragma once

#include <string>
#include <vector>

#include "models/model.h"
#include "plan/layout.h"

namespace hawser::train {

// C [m, n] = op(A) op(B), all dense.
struct ProductShape {
  std::string name;  // "gate_up_proj, dW"
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  DType in = DType::f32, out = DType::f32;
  std::int64_t count = 0;  // in a training step of one rank, recompute left out

  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

// Equal shapes once. The head's three are there as if its logits were whole (`head`), or left out.
std::vector<ProductShape> products_of(const models::Model& model, const plan::Layout& layout, bool head);

// On a GPU: has cuBLASLt's algorithms timed for the products of the layers (ops::gemm_prepare), so that steps take the
// fastest. Takes a few seconds, and memory that is given back. Elsewhere nothing.
void prepare_products(const models::Model& model, const plan::Layout& layout, Device& device);

}  // namespace hawser::train
