// Helpers for the ops' CUDA kernels: views as rows, block sums, launches. Vector types are in device/cuda/vector.cuh.
//
// Kernels have two widths: N elements, which fill 16 bytes of the narrower dtype, if every row is aligned to 16 bytes
// and holds a multiple of N (aligned()); otherwise N = 1. The shapes and the GPU's number of SMs alone determine the
// order of sums: two runs give the same bits. Element indices are 64-bit.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "base/units.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/native.h"
#include "device/cuda/vector.cuh"
#include "tensor/dtype_dispatch.h"
#include "tensor/tensor.h"

namespace hawser::ops::cuda {

// Kernels use these without a namespace.
using hawser::cuda::Bf;
using hawser::cuda::from_float;
using hawser::cuda::load;
using hawser::cuda::load_float;
using hawser::cuda::Moved;
using hawser::cuda::narrow;
using hawser::cuda::store;
using hawser::cuda::store_float;
using hawser::cuda::to_float;
using hawser::cuda::Vec;
using hawser::cuda::widen;

inline cudaStream_t stream_of(const CudaNative& native) {
  return static_cast<cudaStream_t>(native.stream);
}

// Allocates from the start of the stream's scratch, for one call.
class Scratch {
 public:
  explicit Scratch(const CudaNative& native) : at_(native.scratch()), end_(at_ + kCudaScratchBytes) {}
  template <class T>
  T* take(std::int64_t count) {
    const std::int64_t bytes = round_up(count * static_cast<std::int64_t>(sizeof(T)), 256);
    HAWSER_CHECK(bytes <= end_ - at_, "scratch: ", bytes, " bytes requested, ", end_ - at_, " left");
    T* out = reinterpret_cast<T*>(at_);
    at_ += bytes;
    return out;
  }
  std::int64_t left() const { return end_ - at_; }

 private:
  std::byte* at_;
  std::byte* end_;
};

// Lets blocks of `kernel` have `bytes` of dynamic shared memory; without a call they have 48 KiB at most. InternalError
// if the GPU has less: a kernel for it must take less.
template <class Kernel>
void allow_shared_memory(const CudaNative& native, Kernel kernel, std::int64_t bytes) {
  cudaFuncAttributes attributes{};
  HAWSER_CUDA_CHECK(cudaFuncGetAttributes(&attributes, kernel));
  const std::int64_t all = bytes + static_cast<std::int64_t>(attributes.sharedSizeBytes);
  HAWSER_CHECK(all <= native.limits.block_shared_bytes, "a block of a kernel takes ", all,
               " bytes of shared memory, compute capability ", capability_text(native.limits.capability), " has ",
               native.limits.block_shared_bytes);
  HAWSER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

// ---- views as rows ----

template <class T>
struct Rows2 {
  T* data = nullptr;
  std::int64_t count = 0, columns = 0, stride = 0;
  __host__ __device__ T* row(std::int64_t index) const { return data + index * stride; }
};

template <class T>
Rows2<T> rows2(const TensorView& view) {
  if (view.empty()) return {};
  auto* data = reinterpret_cast<T*>(view.raw());
  if (view.rank() == 0) return {data, 1, 1, 1};
  const std::int64_t count = view.size(0);
  return {data, count, count > 0 ? view.elements() / count : 0, view.stride(0)};
}

// True if every row is aligned to 16 bytes and holds a multiple of N elements. Empty views count as aligned.
template <int N>
bool aligned(std::initializer_list<TensorView> views) {
  for (const TensorView& view : views) {
    if (view.empty() || view.elements() == 0) continue;
    const std::int64_t rows = view.rank() > 0 ? view.size(0) : 1;
    if (reinterpret_cast<std::uintptr_t>(view.raw()) % 16 != 0 || view.elements() / rows % N != 0) return false;
    if (rows > 1 && view.stride(0) * size_of(view.dtype()) % 16 != 0) return false;
  }
  return true;
}

// Calls body with a value of the element's C++ type in kernels: float or Bf.
template <class Body>
auto dispatch_device_float(DType dtype, const Body& body) {
  return dispatch_float_as<float, Bf>(dtype, body);
}

// ---- sums ----

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// Returns the sum over the block to every thread. blockDim.x is a multiple of 32. `shared`: 32 of T; before a second
// call on the same memory the block needs a barrier.
template <class T>
__device__ __forceinline__ T block_sum(T value, T* shared) {
  value = warp_sum(value);
  const int warps = blockDim.x / 32;
  if (warps == 1) return value;
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  const int lane = threadIdx.x % 32;
  return warp_sum(lane < warps ? shared[lane] : T{});
}

// ---- data errors ----

// Writes a report; concurrent reports may overwrite one another.
__device__ __forceinline__ void report_fault(CudaFault* fault, CudaFault::Op op, std::int32_t value, std::int64_t at,
                                             std::int64_t limit) {
  fault->value = value;
  fault->at = at;
  fault->limit = limit;
  __threadfence_system();
  fault->op = op;
}

// True if value is in [0, limit). Otherwise writes a report.
__device__ __forceinline__ bool in_range(CudaFault* fault, CudaFault::Op op, std::int32_t value, std::int64_t at,
                                         std::int64_t limit) {
  if (value >= 0 && value < limit) return true;
  report_fault(fault, op, value, at, limit);
  return false;
}

// ---- elementwise ----

// Calls body(row, column) for every N elements of `rows` rows of `vectors` * N columns. The grid is one-dimensional:
// `parts` blocks cover the columns of blockDim.y rows.
template <int N, class Body>
__global__ void __launch_bounds__(256) map_kernel(std::int64_t rows, std::int64_t vectors, unsigned parts, Body body) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x / parts) * blockDim.y + threadIdx.y;
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x % parts) * blockDim.x + threadIdx.x;
  if (row < rows && at < vectors) body(row, at * N);
}

// How `map` divides an area: blocks of `height` times U rows and `width` vectors.
struct MapShape {
  unsigned width = 256, height = 1, parts = 1, blocks = 1;
  MapShape(std::int64_t rows, std::int64_t vectors, int u = 1) {
    while (width > 32 && width / 2 >= vectors) width /= 2;
    height = rows > 1 ? 256 / width : 1;
    const std::int64_t across = ceil_div(vectors, width), all = across * ceil_div(rows, height * u);
    HAWSER_CHECK(all < (std::int64_t{1} << 31), "a grid of ", all, " blocks");
    parts = static_cast<unsigned>(across);
    blocks = static_cast<unsigned>(all);
  }
};

template <int N, class Body>
void map(const CudaNative& native, std::int64_t rows, std::int64_t columns, const Body& body) {
  if (rows == 0 || columns == 0) return;
  const MapShape shape(rows, columns / N);
  map_kernel<N>
      <<<shape.blocks, dim3(shape.width, shape.height), 0, stream_of(native)>>>(rows, columns / N, shape.parts, body);
}

// Same in two steps, for bodies with dependent loads: body.load(row, column) of U rows, blockDim.y apart, runs before
// the first body.store(row, column, loaded).
template <int N, int U, class Body>
__global__ void __launch_bounds__(256)
    map_rows_kernel(std::int64_t rows, std::int64_t vectors, unsigned parts, Body body) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x / parts) * blockDim.y * U + threadIdx.y;
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x % parts) * blockDim.x + threadIdx.x;
  if (at >= vectors) return;
  typename Body::Loaded loaded[U];
#pragma unroll
  for (int u = 0; u < U; ++u) {
    if (row + u * blockDim.y < rows) loaded[u] = body.load(row + u * blockDim.y, at * N);
  }
#pragma unroll
  for (int u = 0; u < U; ++u) {
    if (row + u * blockDim.y < rows) body.store(row + u * blockDim.y, at * N, loaded[u]);
  }
}

template <int N, int U, class Body>
void map_rows(const CudaNative& native, std::int64_t rows, std::int64_t columns, const Body& body) {
  if (rows == 0 || columns == 0) return;
  const MapShape shape(rows, columns / N, U);
  map_rows_kernel<N, U>
      <<<shape.blocks, dim3(shape.width, shape.height), 0, stream_of(native)>>>(rows, columns / N, shape.parts, body);
}

// Views of one shape as rows; a single long row if all are dense.
struct Extent {
  std::int64_t rows = 0, columns = 0;
};
inline Extent extent_of(std::initializer_list<TensorView> views) {
  const TensorView& shape = *views.begin();
  if (shape.elements() == 0) return {};
  if (std::all_of(views.begin(), views.end(), [](const TensorView& view) { return view.empty() || view.dense(); })) {
    return {1, shape.elements()};
  }
  return {shape.size(0), shape.elements() / shape.size(0)};
}

// True if the extent's columns are a multiple of N and every row is aligned to 16 bytes. A flat row qualifies only if
// its length is a multiple of N.
template <int N>
bool aligned_as(const Extent& extent, std::initializer_list<TensorView> views) {
  if (extent.columns % N != 0) return false;
  for (const TensorView& view : views) {
    if (view.empty()) continue;
    if (reinterpret_cast<std::uintptr_t>(view.raw()) % 16 != 0) return false;
    if (extent.rows > 1 && view.stride(0) * size_of(view.dtype()) % 16 != 0) return false;
  }
  return true;
}

}  // namespace hawser::ops::cuda
