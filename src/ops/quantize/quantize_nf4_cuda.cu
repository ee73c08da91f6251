#include "ops/cuda/kernel.cuh"
#include "ops/quantize/quantize_nf4.h"

namespace hawser::ops::cuda {

namespace {

constexpr int kThreads = 256;
// An Nf4Block as words of 32 bits, to which views are aligned: the scale, then the codes of 8 weights each.
constexpr int kBlockWords = static_cast<int>(size_of(DType::nf4)) / 4;
constexpr int kWordWeights = 8, kCodeWords = kBlockWords - 1;

struct Bounds {
  float v[kNf4Levels - 1];
};
struct Levels {
  float v[kNf4Levels];
};

// A warp for each block: lane i has weights 2 i and 2 i + 1, whose codes are byte i.
template <class X>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const X* x, std::uint32_t* q, std::int64_t blocks, Bounds bounds) {
  const int lane = threadIdx.x % 32;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * (kThreads / 32);
  for (std::int64_t b = static_cast<std::int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32; b < blocks;
       b += warps) {
    const float first = to_float(x[b * kNf4Block + 2 * lane]), second = to_float(x[b * kNf4Block + 2 * lane + 1]);
    const std::uint32_t size = max(__float_as_uint(first) & 0x7fffffffu, __float_as_uint(second) & 0x7fffffffu);
    const std::uint32_t largest = __reduce_max_sync(0xffffffffu, size);
    const bool finite = largest < 0x7f800000u;
    const float scale = finite ? __uint_as_float(largest) : __uint_as_float(0x7fc00000u);
    const auto code = [&](float value) {
      if (!finite || largest == 0) return static_cast<std::uint32_t>(kNf4Zero);
      const float share = __fdiv_rn(value, scale);
      std::uint32_t out = 0;
#pragma unroll
      for (int i = 0; i < kNf4Levels - 1; ++i) out += share > bounds.v[i] ? 1 : 0;
      return out;
    };
    std::uint32_t* const to = q + b * kBlockWords;
    if (lane == 0) *reinterpret_cast<float*>(to) = scale;
    reinterpret_cast<std::uint8_t*>(to + 1)[lane] = static_cast<std::uint8_t>(code(first) << 4 | code(second));
  }
}

// A thread for each word of codes.
template <class Y, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    dequantize_kernel(const std::uint32_t* q, Y* y, std::int64_t words, Levels levels) {
  __shared__ float level[kNf4Levels];
  if (threadIdx.x < kNf4Levels) level[threadIdx.x] = levels.v[threadIdx.x];
  __syncthreads();
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < words; i += step) {
    const std::uint32_t* const block = q + i / kCodeWords * kBlockWords;
    const float scale = __uint_as_float(block[0]);
    const std::uint32_t codes = block[1 + i % kCodeWords];
    Vec<float, kWordWeights> values;
#pragma unroll
    for (int k = 0; k < kWordWeights; ++k) {
      const int shift = k / 2 * 8 + (k % 2 == 0 ? 4 : 0);
      values.v[k] = __fmul_rn(scale, level[codes >> shift & 15u]);
    }
    if constexpr (kAligned) {
      store_float<kWordWeights>(y + i * kWordWeights, values);
    } else {
#pragma unroll
      for (int k = 0; k < kWordWeights; ++k) y[i * kWordWeights + k] = from_float<Y>(values.v[k]);
    }
  }
}

unsigned grid_of(std::int64_t items) {
  constexpr std::int64_t kMost = 16384;
  return static_cast<unsigned>(std::min(ceil_div(items, kThreads), kMost));
}

}  // namespace

void quantize_nf4(const CudaNative& native, const QuantizeNf4& args) {
  const std::int64_t blocks = args.q.elements();
  if (blocks == 0) return;
  Bounds bounds;
  std::copy(kNf4Bounds.begin(), kNf4Bounds.end(), bounds.v);
  dispatch_device_float(args.x.dtype(), [&](auto tag) {
    using X = decltype(tag);
    quantize_kernel<X><<<grid_of(32 * blocks), kThreads, 0, stream_of(native)>>>(
        reinterpret_cast<const X*>(args.x.raw()), reinterpret_cast<std::uint32_t*>(args.q.raw()), blocks, bounds);
  });
}

void dequantize_nf4(const CudaNative& native, const DequantizeNf4& args) {
  const std::int64_t words = kCodeWords * args.q.elements();
  if (words == 0) return;
  Levels levels;
  std::copy(kNf4Values.begin(), kNf4Values.end(), levels.v);
  dispatch_device_float(args.y.dtype(), [&](auto tag) {
    using Y = decltype(tag);
    const auto* const q = reinterpret_cast<const std::uint32_t*>(args.q.raw());
    auto* const y = reinterpret_cast<Y*>(args.y.raw());
    if (reinterpret_cast<std::uintptr_t>(y) % 16 == 0) {
      dequantize_kernel<Y, true><<<grid_of(words), kThreads, 0, stream_of(native)>>>(q, y, words, levels);
    } else {
      dequantize_kernel<Y, false><<<grid_of(words), kThreads, 0, stream_of(native)>>>(q, y, words, levels);
    }
  });
}

}  // namespace hawser::ops::cuda
