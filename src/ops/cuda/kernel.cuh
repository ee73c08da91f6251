// What the CUDA kernels share: 16-byte vectors, sums over a block, launches.
//
// Kernels come in two widths: N elements that fill 16 bytes of the narrower dtype where every row starts at 16 bytes
// and holds a multiple of N (aligned()), else N = 1. Sums have an order given by the shapes and the GPU's number of
// multiprocessors alone: two runs give the same bits. Element indices are 64-bit.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "base/units.h"
#include "device/cuda/check.h"
#include "device/cuda/native.h"
#include "tensor/tensor.h"

namespace hawser::ops::cuda {

using Bf = __nv_bfloat16;

inline cudaStream_t stream_of(const CudaNative& native) {
  return static_cast<cudaStream_t>(native.stream);
}

// Memory of the stream's scratch, handed out from its beginning; for one call.
class Scratch {
 public:
  explicit Scratch(const CudaNative& native) : at_(native.scratch()), end_(at_ + kCudaScratchBytes) {}
  template <class T>
  T* take(std::int64_t count) {
    const std::int64_t bytes = round_up(count * static_cast<std::int64_t>(sizeof(T)), 256);
    HAWSER_CHECK(bytes <= end_ - at_, "scratch: ", bytes, " bytes asked of the ", end_ - at_, " left");
    T* out = reinterpret_cast<T*>(at_);
    at_ += bytes;
    return out;
  }
  std::int64_t left() const { return end_ - at_; }

 private:
  std::byte* at_;
  std::byte* end_;
};

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

// Every row starts at a multiple of 16 bytes and holds a multiple of N elements. Empty views are aligned.
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

// body(value of the element's C++ type) for float32 and bf16.
template <class Body>
void with_float(DType dtype, const Body& body) {
  if (dtype == DType::bf16) {
    body(Bf{});
  } else {
    body(float{});
  }
}

// ---- vectors ----

template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec {
  T v[N];
};

template <int N, class T>
__device__ __forceinline__ Vec<T, N> load(const T* from) {
  return *reinterpret_cast<const Vec<T, N>*>(from);
}
template <int N, class T>
__device__ __forceinline__ void store(T* to, const Vec<T, N>& value) {
  *reinterpret_cast<Vec<T, N>*>(to) = value;
}

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(Bf x) {
  return __bfloat162float(x);
}
template <class T>
__device__ __forceinline__ T from_float(float x) {
  if constexpr (std::is_same_v<T, Bf>) {
    return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

template <class T, int N>
__device__ __forceinline__ Vec<float, N> widen(const Vec<T, N>& x) {
  Vec<float, N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) out.v[i] = to_float(x.v[i]);
  return out;
}
template <class T, int N>
__device__ __forceinline__ Vec<T, N> narrow(const Vec<float, N>& x) {
  Vec<T, N> out;
#pragma unroll
  for (int i = 0; i < N; ++i) out.v[i] = from_float<T>(x.v[i]);
  return out;
}
template <int N, class T>
__device__ __forceinline__ Vec<float, N> load_float(const T* from) {
  return widen(load<N>(from));
}
template <int N, class T>
__device__ __forceinline__ void store_float(T* to, const Vec<float, N>& value) {
  store<N>(to, narrow<T>(value));
}

// ---- sums ----

template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// The sum over the block, in every thread. blockDim.x is a multiple of 32. `shared`: 32 of T; a second call on the same
// memory needs a barrier between.
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

// True where value lies in [0, limit); else the first to come leaves a report.
__device__ __forceinline__ bool in_range(CudaFault* fault, CudaFault::Op op, std::int32_t value, std::int64_t at,
                                         std::int64_t limit) {
  if (value >= 0 && value < limit) return true;
  fault->value = value;
  fault->at = at;
  fault->limit = limit;
  __threadfence_system();
  fault->op = op;
  return false;
}

// ---- element by element ----

// body(row, column) for every N elements of `rows` rows of `vectors` * N columns. The grid is one-dimensional:
// `parts` blocks cover the columns of blockDim.y rows.
template <int N, class Body>
__global__ void __launch_bounds__(256) map_kernel(std::int64_t rows, std::int64_t vectors, unsigned parts, Body body) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x / parts) * blockDim.y + threadIdx.y;
  const std::int64_t at = static_cast<std::int64_t>(blockIdx.x % parts) * blockDim.x + threadIdx.x;
  if (row < rows && at < vectors) body(row, at * N);
}

template <int N, class Body>
void map(const CudaNative& native, std::int64_t rows, std::int64_t columns, const Body& body) {
  if (rows == 0 || columns == 0) return;
  const std::int64_t vectors = columns / N;
  unsigned width = 256;
  while (width > 32 && width / 2 >= vectors) width /= 2;
  const unsigned height = rows > 1 ? 256 / width : 1;
  const std::int64_t parts = ceil_div(vectors, width), blocks = parts * ceil_div(rows, height);
  HAWSER_CHECK(blocks < (std::int64_t{1} << 31), "a grid of ", blocks, " blocks");
  map_kernel<N><<<static_cast<unsigned>(blocks), dim3(width, height), 0, stream_of(native)>>>(
      rows, vectors, static_cast<unsigned>(parts), body);
}

// The views of one shape as rows: one long row where all are dense.
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

// A flat row of any length is a multiple of N only when its length is.
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
