// The GEMMs of a step, by shape: to choose algorithms for them before the first step, and to measure what a
// step could at best take.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/mpi/world.h"
#include "models/model.h"
#include "plan/layout.h"

namespace hawser::train {

// C [m, n] = op(A) op(B), all dense.
struct GemmShape {
  std::string name;  // "gate_up_proj, dW"
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  DType in = DType::f32, out = DType::f32;
  std::int64_t count = 0;  // in a training step of one rank, recompute left out
  bool gradient = false;   // of backward alone

  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

// Equal shapes once. The head's three are there as if its logits were whole (`head`), or left out.
std::vector<GemmShape> gemms_of(const models::Model& model, const plan::Layout& layout, bool head);

// On a GPU: has cuBLASLt's algorithms timed for the products of the layers (ops::gemm_prepare), so that steps take the
// fastest. Takes a few seconds, and memory that is given back. Elsewhere nothing. `purpose`: of the steps.
void prepare_gemms(const models::Model& model, const plan::Layout& layout, Device& device,
                   step::Purpose purpose = step::Purpose::train);

// Choices of an earlier run, as ops::gemm_choices gave them.
struct StoredChoices {
  std::string text;    // "": there are none
  std::string origin;  // where they were found, for people
};

struct GemmAlgorithmOptions {
  // Time what is not stored; else it runs with the library's own first choice, which is the same in every run.
  bool measure = true;
  step::Purpose purpose = step::Purpose::train;
  std::function<StoredChoices()> stored = nullptr;  // asked on rank 0, on a thread of its own; null: none
};

// On a GPU: one choice of algorithm for each product, the same on every rank, since the bits of a sum depend on it.
// Rank 0 takes what is stored and times the rest; the others take what it has. Choices that were made on another kind
// of GPU or by another cuBLASLt do not hold and are made anew; ranks with a GPU of another kind than rank 0's time
// their own. `say` hears of both, on rank 0. Every rank calls it; returns rank 0's choices. Elsewhere nothing, and "".
std::string choose_gemm_algorithms(const models::Model& model, const plan::Layout& layout, Device& device,
                                   comm::World* world, const GemmAlgorithmOptions& how,
                                   const std::function<void(const std::string&)>& log);

// Products of the steps so far that cuBLASLt refused, for people: what runs in their place, and why. A few lines at
// most.
std::vector<std::string> slow_gemms(Stream& stream);

}  // namespace hawser::train
