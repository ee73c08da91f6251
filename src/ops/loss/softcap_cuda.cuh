// Bias and soft cap of logits in kernels.
#pragma once

#include "ops/cuda/kernel.cuh"

namespace hawser::ops::cuda {

// Logits as they are.
struct PlainLogits {
  __device__ __forceinline__ float operator()(float logit, std::int64_t) const { return logit; }
  __device__ __forceinline__ float factor(float) const { return 1; }
};

// cap * tanh((logit + bias[v]) / cap); without a bias (null) or a cap (0), without its part.
template <class Bias>
struct CappedLogits {
  const Bias* bias = nullptr;
  float cap = 0, inverse = 0;

  CappedLogits(const void* of, double softcap)
      : bias(static_cast<const Bias*>(of)), cap(static_cast<float>(softcap)), inverse(cap > 0 ? 1.0f / cap : 0.0f) {}
  __device__ __forceinline__ float operator()(float logit, std::int64_t v) const {
    if (bias != nullptr) logit += to_float(bias[v]);
    return cap > 0 ? tanhf(logit * inverse) * cap : logit;
  }
  // The derivative of the result z by the logit.
  __device__ __forceinline__ float factor(float z) const {
    if (cap == 0) return 1;
    const float t = z * inverse;
    return 1.0f - t * t;
  }
};

}  // namespace hawser::ops::cuda
