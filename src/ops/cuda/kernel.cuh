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

// bf16 stays in words of two, as it comes from memory: the compiler would give each half a register.
template <int N>
requires(N % 2 == 0) struct alignas(2 * N < 16 ? 2 * N : 16) Vec<Bf, N> {
  std::uint32_t words[N / 2];
};

// What a thread moves at once. Stores say so themselves: the compiler cuts a struct into a store an element.
template <int Bytes>
using Moved = std::conditional_t<
    Bytes % 16 == 0, uint4,
    std::conditional_t<Bytes == 8, uint2, std::conditional_t<Bytes == 4, std::uint32_t, std::uint16_t>>>;

template <int N, class T>
__device__ __forceinline__ Vec<T, N> load(const T* from) {
  using W = Moved<static_cast<int>(sizeof(T)) * N>;
  Vec<T, N> out;
  static_assert(sizeof(out) % sizeof(W) == 0);
  W words[sizeof(out) / sizeof(W)];
#pragma unroll
  for (std::size_t i = 0; i < sizeof(out) / sizeof(W); ++i) words[i] = reinterpret_cast<const W*>(from)[i];
  memcpy(&out, words, sizeof(out));
  return out;
}
template <int N, class T>
__device__ __forceinline__ void store(T* to, const Vec<T, N>& value) {
  using W = Moved<static_cast<int>(sizeof(T)) * N>;
  auto* const out = reinterpret_cast<W*>(to);
  if constexpr (sizeof(W) == 16) {
    std::uint32_t w[sizeof(value) / 4];
    memcpy(w, &value, sizeof(value));
#pragma unroll
    for (std::size_t i = 0; i < sizeof(value) / 16; ++i) {
      asm volatile("st.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(out + i), "r"(w[4 * i]), "r"(w[4 * i + 1]),
                   "r"(w[4 * i + 2]), "r"(w[4 * i + 3])
                   : "memory");
    }
  } else if constexpr (sizeof(W) == 8) {
    std::uint32_t w[2];
    memcpy(w, &value, sizeof(value));
    asm volatile("st.v2.b32 [%0], {%1, %2};" ::"l"(out), "r"(w[0]), "r"(w[1]) : "memory");
  } else {
    W w;
    memcpy(&w, &value, sizeof(value));
    *out = w;
  }
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
  for (int i = 0; i < N; ++i) {
    if constexpr (std::is_same_v<T, Bf> && N % 2 == 0) {
      out.v[i] = __uint_as_float(i % 2 == 0 ? x.words[i / 2] << 16 : x.words[i / 2] & 0xffff0000u);
    } else {
      out.v[i] = to_float(x.v[i]);
    }
  }
  return out;
}
template <class T, int N>
__device__ __forceinline__ Vec<T, N> narrow(const Vec<float, N>& x) {
  Vec<T, N> out;
  if constexpr (std::is_same_v<T, Bf> && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(x.v[i], x.v[i + 1]);
      memcpy(&out.words[i / 2], &pair, sizeof(pair));
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) out.v[i] = from_float<T>(x.v[i]);
  }
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

// How map cuts an area: blocks of `height` times U rows and `width` vectors.
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

// The same in two steps, for bodies whose loads wait for one another: body.load(row, column) of U rows, each blockDim.y
// apart, before body.store(row, column, what was loaded) of the first.
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
