// What the CUDA kernels of gated activations share.
#pragma once

#include "ops/activation/gated.h"
#include "ops/activation/gelu_cuda.cuh"

namespace hawser::ops::cuda {

// float32 uses the accurate exponential. With bf16, the error of the fast one (2 units in the last place of float32) is
// below the rounding to bf16.
template <class Act>
__device__ __forceinline__ float sigmoid(float x) {
  if constexpr (std::is_same_v<Act, Bf>) {
    // As __fdividef(1, 1 + __expf(-x)), without the instructions for denormal numbers, which 1 + e is not.
    float e, s;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(-1.44269504f * x));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.0f + e));
    return s;
  } else {
    return 1.0f / (1.0f + expf(-x));
  }
}

// A gate's value and slope, act(x) and act'(x).
struct GatePoint {
  float value, slope;
};

template <class Act, Gate kKind>
__device__ __forceinline__ GatePoint gate_point(float x) {
  if constexpr (kKind == Gate::silu) {
    const float s = sigmoid<Act>(x), silu = x * s;
    return {silu, s + silu * (1.0f - s)};
  } else {
    constexpr Gelu kGelu = kKind == Gate::gelu ? Gelu::exact : Gelu::tanh;
    const GeluPoint at = gelu_point<kGelu>(x);
    return {x * at.share, at.slope};
  }
}

// y, or dgate_up and y, in FP8 (gated_fp8_cuda.cu).
void gated_forward_fp8(const CudaNative& native, const GatedForward& args);
void gated_backward_fp8(const CudaNative& native, const GatedBackward& args);

}  // namespace hawser::ops::cuda
