// The GEMMs of a step by shape, and the choice of their cuBLASLt algorithms before the first step.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/world.h"
#include "models/model.h"
#include "plan/layout.h"

namespace hawser::engine {

// C [m, n] = op(A) op(B), all dense. Two GEMMs that differ only in dtypes or in the form of their scales have different
// algorithms, and two entries in the list.
struct GemmShape {
  std::string name;  // "gate_up_proj, dW"
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false, accumulate = false;
  DType in_a = DType::f32, in_b = DType::f32, out = DType::f32;
  std::optional<ops::ScaleKind> scaling_a, scaling_b;  // of ops::Gemm's scales; absent: none
  std::int64_t count = 0;                              // in a training step of one rank, without recompute
  bool gradient = false;                               // used in backward only

  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

// Lists each shape once. `head`: includes the head's three GEMMs as if its logits were not split into chunks.
std::vector<GemmShape> gemms_of(const models::Model& model, const plan::Layout& layout, bool head);

// Scales of a kind for a matrix [rows, columns]; empty without a kind. Their values are undefined.
Storage scales_for(std::optional<ops::ScaleKind> kind, const TensorView& matrix, Device& device);

// On a GPU: times cuBLASLt's algorithms for the GEMMs of the layers (ops::gemm_prepare), so that steps use the fastest.
// Takes about half a minute and temporary memory the first time; what earlier sessions measured is in the user's cache
// (engine/gemm_cache.h). Does nothing on other devices. `purpose`: of the steps.
void prepare_gemms(const models::Model& model, const plan::Layout& layout, Device& device,
                   step::Purpose purpose = step::Purpose::train);

// Choices of an earlier run, as returned by ops::gemm_choices.
struct StoredChoices {
  std::string text;    // empty if there are none
  std::string origin;  // where they were found, for log lines
};

struct GemmAlgorithmOptions {
  // Times GEMMs without a stored choice; otherwise they use the library's first choice, the same in every run.
  bool measure = true;
  step::Purpose purpose = step::Purpose::train;
  // It is called on rank 0, on a separate thread. Without it nothing is stored. Of a GEMM that several have, the first
  // one's choice counts.
  std::function<std::vector<StoredChoices>()> stored = nullptr;
};

// On a GPU: chooses one algorithm for each GEMM, the same on every rank, since the bits of a sum depend on it. Rank 0
// takes the stored choices, then the cache's, and times the rest; the other ranks use rank 0's. Choices from another
// GPU model or another cuBLASLt version are not used, and all GEMMs are timed again. Ranks whose GPU model differs from
// rank 0's time their own. Rank 0 logs both cases with `log`. Every rank calls it; returns rank 0's choices. On other
// devices returns "".
std::string choose_gemm_algorithms(const models::Model& model, const plan::Layout& layout, Device& device,
                                   comm::World* world, const GemmAlgorithmOptions& how,
                                   const std::function<void(const std::string&)>& log);

// The GEMMs of the steps so far that cuBLASLt does not support, and the attention calls for which cuDNN has no plan,
// for the user: the kernel used instead, and the reason. A few lines at most.
std::vector<std::string> slow_kernels(Stream& stream);

}  // namespace hawser::engine
