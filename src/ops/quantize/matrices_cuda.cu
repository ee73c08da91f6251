#include "ops/quantize/matrices.h"
#include "ops/quantize/matrices_cuda.cuh"

namespace hawser::ops::cuda {

namespace {

// A thread has kVectors vectors of a block's elements. It issues all loads before it needs the first.
constexpr int kVectors = 4;

template <int N>
constexpr std::int64_t kBlockElements = static_cast<std::int64_t>(kTileThreads) * kVectors* N;

template <int N>
__device__ __forceinline__ std::int64_t place(std::int64_t first, int k) {
  return first + (static_cast<std::int64_t>(k) * kTileThreads + threadIdx.x) * N;
}

// Elements [at, at + N); zeros from `end` on.
template <int N, class X>
__device__ __forceinline__ Vec<X, N> load_before(const X* x, std::int64_t at, std::int64_t end) {
  if (at + N <= end) return load<N>(x + at);
  Vec<float, N> out = {};
  for (int i = 0; i < N && at + i < end; ++i) out.v[i] = to_float(x[at + i]);
  return narrow<X>(out);
}

template <int N, class X>
__device__ __forceinline__ void load_block(const X* x, std::int64_t first, std::int64_t end,
                                           Vec<X, N> (&loaded)[kVectors]) {
  if (first + kBlockElements<N> <= end) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) loaded[k] = load<N>(x + place<N>(first, k));
  } else {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) loaded[k] = load_before<N>(x, place<N>(first, k), end);
  }
}

template <class X, int N>
__global__ void __launch_bounds__(kTileThreads)
    amax_parts_kernel(const X* x, std::int64_t begin, std::int64_t end, const __grid_constant__ MatrixTable table,
                      float* amax) {
  __shared__ PartMaxima::Memory memory;
  const std::int64_t first = begin + blockIdx.x * kBlockElements<N>;
  Vec<X, N> loaded[kVectors];
  load_block<N>(x, first, end, loaded);
  PartMaxima maxima(table, amax, first, min(first + kBlockElements<N>, end), memory);
#pragma unroll
  for (int k = 0; k < kVectors; ++k) maxima.take(place<N>(first, k), widen(loaded[k]));
  maxima.finish();
}

// N elements, with the casts of TileBytes.
template <int N, __nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ void store_rounded(std::uint8_t* to, const Vec<float, N>& values, float inverse) {
  const auto pair = [&](int i) -> std::uint32_t {
    const float2 scaled = make_float2(values.v[i] * inverse, i + 1 < N ? values.v[i + 1] * inverse : 0);
    return __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, kFormat);
  };
  if constexpr (N == 1) {
    *to = static_cast<std::uint8_t>(pair(0));
  } else {
    static_assert(N == 4 || N == 8);
    std::uint32_t words[N / 4];
#pragma unroll
    for (int w = 0; w < N / 4; ++w) words[w] = pair(4 * w) | pair(4 * w + 2) << 16;
    if constexpr (N == 4) {
      *reinterpret_cast<std::uint32_t*>(to) = words[0];
    } else {
      *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    }
  }
}

template <class X, int N, __nv_fp8_interpretation_t kFormat>
__global__ void __launch_bounds__(kTileThreads)
    quantize_parts_kernel(const X* x, const float* scales, std::uint8_t* q, std::int64_t begin, std::int64_t end,
                          const __grid_constant__ MatrixTable table) {
  __shared__ DimSlice shared;
  const std::int64_t first = begin + blockIdx.x * kBlockElements<N>;
  Vec<X, N> loaded[kVectors];
  load_block<N>(x, first, end, loaded);
  DimSlice matrix = part_of_block(table, first, shared);
  float inverse = matrix.index < 0 ? 0 : 1.0f / scales[matrix.index];
  const auto seek = [&](std::int64_t element) {
    if (element < matrix.end) return;
    matrix = part_of(table, element);
    inverse = matrix.index < 0 ? 0 : 1.0f / scales[matrix.index];
  };
#pragma unroll
  for (int k = 0; k < kVectors; ++k) {
    const std::int64_t at = place<N>(first, k);
    if (at >= end) break;
    Vec<float, N> values = widen(loaded[k]);
    seek(at);
    if (at + N <= min(matrix.end, end)) {
      if (matrix.index < 0) values = {};
      store_rounded<N, kFormat>(q + at, values, inverse);
      continue;
    }
    for (int i = 0; i < N && at + i < end; ++i) {
      seek(at + i);
      const Vec<float, 1> one = {matrix.index < 0 ? 0 : values.v[i]};
      store_rounded<1, kFormat>(q + at + i, one, inverse);
    }
  }
}

template <int N>
unsigned blocks_for(std::int64_t count) {
  return static_cast<unsigned>(ceil_div(count, kBlockElements<N>));
}

bool starts_at(const std::byte* data, std::int64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % static_cast<std::uintptr_t>(bytes) == 0;
}

}  // namespace

void amax_of_matrices(const CudaNative& native, const AmaxOfMatrices& args) {
  const cudaStream_t stream = stream_of(native);
  if (args.amax.elements() == 0) return;
  HAWSER_CUDA_CHECK(cudaMemsetAsync(args.amax.raw(), 0, static_cast<std::size_t>(args.amax.bytes()), stream));
  dispatch_device_float(args.x.dtype(), [&](auto tag) {
    using X = decltype(tag);
    constexpr int kWide = 16 / sizeof(X);
    const auto* const x = reinterpret_cast<const X*>(args.x.raw());
    float* const amax = args.amax.data<float>();
    each_table(args.matrices, args.x.elements(), [&](std::int64_t begin, std::int64_t end, const MatrixTable& table) {
      if (begin % kWide == 0 && starts_at(args.x.raw(), 16)) {
        amax_parts_kernel<X, kWide>
            <<<blocks_for<kWide>(end - begin), kTileThreads, 0, stream>>>(x, begin, end, table, amax);
      } else {
        amax_parts_kernel<X, 1><<<blocks_for<1>(end - begin), kTileThreads, 0, stream>>>(x, begin, end, table, amax);
      }
    });
  });
}

void quantize_matrices(const CudaNative& native, const QuantizeMatrices& args) {
  const cudaStream_t stream = stream_of(native);
  const float* const scales = args.scales.data<float>();
  auto* const q = reinterpret_cast<std::uint8_t*>(args.q.raw());
  dispatch_device_float(args.x.dtype(), [&](auto tag) {
    using X = decltype(tag);
    constexpr int kWide = 16 / sizeof(X);
    const auto* const x = reinterpret_cast<const X*>(args.x.raw());
    dispatch_fp8_format(args.q.dtype(), [&](auto format) {
      constexpr auto kFormat = decltype(format)::value;
      each_table(args.matrices, args.x.elements(), [&](std::int64_t begin, std::int64_t end, const MatrixTable& table) {
        if (begin % kWide == 0 && starts_at(args.x.raw(), 16) && starts_at(args.q.raw(), kWide)) {
          quantize_parts_kernel<X, kWide, kFormat>
              <<<blocks_for<kWide>(end - begin), kTileThreads, 0, stream>>>(x, scales, q, begin, end, table);
        } else {
          quantize_parts_kernel<X, 1, kFormat>
              <<<blocks_for<1>(end - begin), kTileThreads, 0, stream>>>(x, scales, q, begin, end, table);
        }
      });
    });
  });
}

}  // namespace hawser::ops::cuda
