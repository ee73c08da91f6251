// Shared by the CUDA kernels of rms_norm: factors of channels, dispatch, and the kernels for heads.
#pragma once

#include "ops/cuda/kernel.cuh"
#include "ops/norm/rms_norm.h"

namespace hawser::ops::cuda {

// The factors of channels from their weights (rms_norm.h).
template <bool kUnitOffset, class Weight>
__device__ __forceinline__ float factor(Weight weight) {
  return kUnitOffset ? 1.0f + to_float(weight) : to_float(weight);
}
template <bool kUnitOffset, class Weight, int N>
__device__ __forceinline__ Vec<float, N> factors(const Vec<Weight, N>& weight) {
  Vec<float, N> out = widen(weight);
  if constexpr (kUnitOffset) {
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] += 1.0f;
  }
  return out;
}

// Calls body with values of the element types of x and weight, and std::true_type or std::false_type for unit_offset.
template <class Args, class Body>
void dispatch_norm(const Args& args, const Body& body) {
  dispatch_device_float(args.x.dtype(), [&](auto act) {
    dispatch_device_float(args.weight.dtype(), [&](auto weight) {
      if (args.unit_offset) return body(act, weight, std::true_type());
      body(act, weight, std::false_type());
    });
  });
}

// x [T, H, C] (rms_norm_heads_cuda.cu).
void rms_norm_heads_forward(const CudaNative& native, const RmsNormForward& args);
void rms_norm_heads_backward(const CudaNative& native, const RmsNormBackward& args);

// rstd and y in FP8 (rms_norm_fp8_cuda.cu). False: not for these rows, and nothing is enqueued.
bool rms_norm_fp8_in_one_pass(const CudaNative& native, const RmsNormForward& args);
// From rstd, which is there: y in FP8.
void rms_norm_fp8(const CudaNative& native, const RmsNormForward& args);

}  // namespace hawser::ops::cuda
