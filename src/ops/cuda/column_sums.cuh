// Column sums in two stages with a fixed order: blocks of rows write partial sums, which are then added in order.
#pragma once

#include "ops/cuda/kernel.cuh"

namespace hawser::ops::cuda {

// out[c] (+)= scale * sum over b of partial[b * stride + c], c in [0, columns); scale null: 1. A block handles 32
// columns. Its 32 warps take rows round-robin; their sums are added in order.
template <class Out>
__global__ void __launch_bounds__(1024)
    sum_partials_kernel(const float* partial, int blocks, std::int64_t stride, Out* out, bool accumulate,
                        std::int64_t columns, const float* scale) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");  // waits for the preceding kernel and its writes
#endif
  __shared__ float sums[32][33];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * 32 + lane;
  float sum = 0;
  if (column < columns) {
#pragma unroll 4
    for (int b = warp; b < blocks; b += 32) sum += partial[b * stride + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  // Warp w adds up column w of the block.
  sum = warp_sum(sums[lane][warp]);
  const std::int64_t mine = static_cast<std::int64_t>(blockIdx.x) * 32 + warp;
  if (lane != 0 || mine >= columns) return;
  if (scale != nullptr) sum *= *scale;
  out[mine] = from_float<Out>(accumulate ? to_float(out[mine]) + sum : sum);
}

// Must be launched directly after the kernel that writes `partial`. From compute capability 9.0 on, it starts up while
// that kernel finishes (programmatic dependent launch).
inline void sum_partials(const CudaNative& native, const float* partial, int blocks, std::int64_t stride,
                         const TensorView& out, bool accumulate, std::int64_t columns, const TensorView& scale = {}) {
  dispatch_device_float(out.dtype(), [&](auto tag) {
    using Out = decltype(tag);
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(ceil_div(columns, 32)));
    config.blockDim = dim3(1024);
    config.stream = stream_of(native);
    config.attrs = &early;
    config.numAttrs = native.limits.capability >= 90 ? 1 : 0;
    HAWSER_CUDA_CHECK(cudaLaunchKernelEx(&config, sum_partials_kernel<Out>, partial, blocks, stride,
                                         reinterpret_cast<Out*>(out.raw()), accumulate, columns,
                                         reinterpret_cast<const float*>(scale.raw())));
  });
}

// Number of blocks of rows: depends on the sizes and the GPU, limited by the scratch size.
inline int row_blocks(const CudaNative& native, std::int64_t rows, std::int64_t columns, int per_sm) {
  const std::int64_t fit = (kCudaScratchBytes / 2) / (4 * round_up(columns, 64));
  return static_cast<int>(
      std::clamp<std::int64_t>(ceil_div(rows, 4), 1, std::min<std::int64_t>(fit, per_sm * native.sm_count)));
}

}  // namespace hawser::ops::cuda
