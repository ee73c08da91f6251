// GELU and its derivative at one point, for kernels.
#pragma once

#include "ops/activation/gelu.h"
#include "ops/cuda/kernel.cuh"

namespace hawser::ops::cuda {

// y = x * share; slope = dy/dx.
struct GeluPoint {
  float share, slope;
};

template <Gelu Kind>
__device__ __forceinline__ GeluPoint gelu_point(float x) {
  if constexpr (Kind == Gelu::exact) {
    const float share = 0.5f * (1.0f + erff(x * 0.70710678f));
    return {share, share + x * 0.39894228f * __expf(-0.5f * x * x)};
  } else {
    constexpr float kRoot = 0.79788456f, kCubic = 0.044715f;
    const float t = tanhf(kRoot * (x + kCubic * x * x * x));
    const float share = 0.5f * (1.0f + t);
    return {share, share + 0.5f * x * (1.0f - t * t) * kRoot * (1.0f + 3.0f * kCubic * x * x)};
  }
}

// Calls body with the kind as a constant: body(std::integral_constant<Gelu, ...>).
template <class Body>
void dispatch_gelu(Gelu kind, const Body& body) {
  if (kind == Gelu::exact) {
    body(std::integral_constant<Gelu, Gelu::exact>());
  } else {
    body(std::integral_constant<Gelu, Gelu::tanh>());
  }
}

}  // namespace hawser::ops::cuda
