// Vectorized loads and stores of float32 and bf16, up to 16 bytes per thread; arithmetic is float32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace hawser::cuda {

using Bf = __nv_bfloat16;

template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec {
  T v[N];
};

// bf16 is kept packed in 32-bit words: otherwise the compiler uses a register for each half.
template <int N>
requires(N % 2 == 0) struct alignas(2 * N < 16 ? 2 * N : 16) Vec<Bf, N> {
  std::uint32_t words[N / 2];
};

// Type of one load or store. Stores use explicit vector instructions: the compiler splits a struct into elements.
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

}  // namespace hawser::cuda
