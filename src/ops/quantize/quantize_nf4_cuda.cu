#include "ops/cuda/kernel.cuh"
#include "ops/quantize/quantize_nf4.h"

namespace hawser::ops::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
// A block has 8 words of codes, of 8 weights each; before them the scale, 4 bytes or (double quantization) 1.
constexpr int kWordWeights = 8, kCodeWords = static_cast<int>(kNf4Block) / kWordWeights;
constexpr int kScaleBytes = static_cast<int>(size_of(DType::nf4)) - 4 * kCodeWords;
constexpr int kDoubleScaleBytes = static_cast<int>(size_of(DType::nf4_double)) - 4 * kCodeWords;

struct Bounds {
  float v[kNf4Levels - 1];
};
struct Levels {
  float v[kNf4Levels];
};
// The values of scale codes.
struct Map {
  float v[256];
};
Map map_of_scales() {
  Map map;
  std::copy(kSignedDynamicMap.begin(), kSignedDynamicMap.end(), map.v);
  return map;
}

// Where the scales of blocks in nf4_double go; null: they are in the blocks.
struct Maxima {
  float* values = nullptr;
  const std::int32_t* places = nullptr;
};

// A warp for each block: lane i has weights 2 i and 2 i + 1, whose codes are byte i.
template <class X, int kHead>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(const X* x, std::uint8_t* q, Maxima maxima, std::int64_t blocks, Bounds bounds) {
  constexpr int kBytes = kHead + 4 * kCodeWords;
  const int lane = threadIdx.x % 32;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t b = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; b < blocks; b += warps) {
    const float first = to_float(x[b * kNf4Block + 2 * lane]), second = to_float(x[b * kNf4Block + 2 * lane + 1]);
    const std::uint32_t size = max(__float_as_uint(first) & 0x7fffffffu, __float_as_uint(second) & 0x7fffffffu);
    const std::uint32_t largest = __reduce_max_sync(0xffffffffu, size);
    const bool finite = largest < 0x7f800000u, zero = largest < 0x00800000u;
    const float scale = !finite ? __uint_as_float(0x7fc00000u) : zero ? 0.0f : __uint_as_float(largest);
    const float inverse = __frcp_rn(scale);
    const auto code = [&](float value) {
      if (!finite) return static_cast<std::uint32_t>(kNf4Zero);
      if (zero) return 0u;
      const float share = __fmul_rn(value, inverse);
      std::uint32_t out = 0;
#pragma unroll
      for (int i = 0; i < kNf4Levels - 1; ++i) out += share > bounds.v[i] ? 1 : 0;
      return out;
    };
    std::uint8_t* const to = q + b * kBytes;
    to[kHead + lane] = static_cast<std::uint8_t>(code(first) << 4 | code(second));
    if (lane != 0) continue;
    if constexpr (kHead == kScaleBytes) {
      *reinterpret_cast<float*>(to) = scale;
    } else {
      to[0] = 0;
      // Ranks exchange their maximum: of a NaN and a number that is not defined.
      if (const std::int32_t place = maxima.places[b]; place >= 0) {
        maxima.values[place] = finite ? scale : __uint_as_float(0x7f800000u);
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    encode_kernel(const float* maxima, const float2* groups, const std::int32_t* places, std::uint8_t* q,
                  std::int64_t blocks, Map map) {
  __shared__ float value[256];
  value[threadIdx.x] = map.v[threadIdx.x];
  static_assert(kThreads == 256);
  __syncthreads();
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t b = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; b < blocks; b += step) {
    const std::int32_t place = places[b];
    if (place < 0) continue;
    const float2 group = groups[place / kNf4GroupBlocks];  // scale, mean
    int code = 0;
    if (group.x != 0) {
      const float share = __fmul_rn(__fsub_rn(maxima[place], group.y), __frcp_rn(group.x));
      for (int next = 128; next > 0; next /= 2) {
        if (code + next < 256 && share > __fmul_rn(__fadd_rn(value[code + next - 1], value[code + next]), 0.5f)) {
          code += next;
        }
      }
    }
    q[b * size_of(DType::nf4_double)] = static_cast<std::uint8_t>(code);
  }
}

// The four bytes at any address, of which the aligned words around them are readable.
__device__ __forceinline__ std::uint32_t word_at(const std::uint8_t* at) {
  const auto address = reinterpret_cast<std::uintptr_t>(at);
  const auto* const words = reinterpret_cast<const std::uint32_t*>(address & ~std::uintptr_t{3});
  const unsigned shift = static_cast<unsigned>(address & 3) * 8;
  if (shift == 0) return words[0];
  return __funnelshift_r(words[0], words[1], shift);
}

struct Dequantize {
  const std::uint8_t* q;
  const float2* groups;
  const std::int32_t* row_places;
  int blocks;  // of a row
  std::int64_t rows, columns, first_column;
};

// Bound by memory: 4.1 bits are read and 16 written for each weight. A warp has up to 16 blocks of a row at a time, so
// that it divides once for 1,024 weights; each lane one word of codes of 4 blocks after another, which become 16 bytes
// of bf16: loads and stores of a warp are contiguous. Eight lanes compute the same scale. The levels are in shared
// memory, where 16 floats have 16 banks.
template <class Y, int kHead, bool kAligned>
__global__ void __launch_bounds__(kThreads) dequantize_kernel(Dequantize d, Y* y, Levels levels, Map map) {
  constexpr int kBytes = kHead + 4 * kCodeWords, kWarpBlocks = 32 / kCodeWords, kRunBlocks = 16;
  __shared__ float level[kNf4Levels];
  __shared__ float value[256];
  if (threadIdx.x < kNf4Levels) level[threadIdx.x] = levels.v[threadIdx.x];
  if constexpr (kHead == kDoubleScaleBytes) value[threadIdx.x] = map.v[threadIdx.x];
  __syncthreads();
  const int lane = threadIdx.x % 32, word = lane % kCodeWords;
  const int runs = (d.blocks + kRunBlocks - 1) / kRunBlocks;  // of a row
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * kWarps, all = d.rows * runs;
  for (std::int64_t run = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; run < all; run += warps) {
    const std::int64_t row = run / runs;
    const int first = static_cast<int>(run - row * runs) * kRunBlocks + lane / kCodeWords;
    std::uint32_t codes[kRunBlocks / kWarpBlocks];
    float scale[kRunBlocks / kWarpBlocks];
#pragma unroll
    for (int i = 0; i < kRunBlocks / kWarpBlocks; ++i) {
      const int j = first + i * kWarpBlocks;
      if (j >= d.blocks) break;
      const std::uint8_t* const block = d.q + (row * d.blocks + j) * kBytes;
      if constexpr (kHead == kScaleBytes) {
        scale[i] = *reinterpret_cast<const float*>(block);
        codes[i] = *reinterpret_cast<const std::uint32_t*>(block + kHead + 4 * word);
      } else {
        const float2 group = d.groups[(d.row_places[row] + j) / kNf4GroupBlocks];  // scale, mean
        scale[i] = __fadd_rn(__fmul_rn(value[block[0]], group.x), group.y);
        codes[i] = word_at(block + kHead + 4 * word);
      }
    }
#pragma unroll
    for (int i = 0; i < kRunBlocks / kWarpBlocks; ++i) {
      const int j = first + i * kWarpBlocks;
      if (j >= d.blocks) break;
      Vec<float, kWordWeights> values;
#pragma unroll
      for (int k = 0; k < kWordWeights; ++k) {
        const int shift = k / 2 * 8 + (k % 2 == 0 ? 4 : 0);
        values.v[k] = __fmul_rn(scale[i], level[codes[i] >> shift & 15u]);
      }
      const std::int64_t column = kNf4Block * j + kWordWeights * word - d.first_column;
      Y* const to = y + row * d.columns + column;
      if constexpr (kAligned) {
        if (column >= 0 && column < d.columns) store_float<kWordWeights>(to, values);
      } else {
#pragma unroll
        for (int k = 0; k < kWordWeights; ++k) {
          if (column + k >= 0 && column + k < d.columns) to[k] = from_float<Y>(values.v[k]);
        }
      }
    }
  }
}

unsigned grid_of(std::int64_t items, std::int64_t of_block = kThreads) {
  constexpr std::int64_t kMost = 16384;
  return static_cast<unsigned>(std::min(ceil_div(items, of_block), kMost));
}

template <class Y, int kHead>
void dequantize(const CudaNative& native, const DequantizeNf4& args) {
  Levels levels;
  std::copy(kNf4Values.begin(), kNf4Values.end(), levels.v);
  const Dequantize d{.q = reinterpret_cast<const std::uint8_t*>(args.q.raw()),
                     .groups = reinterpret_cast<const float2*>(args.scales.groups.raw()),
                     .row_places = reinterpret_cast<const std::int32_t*>(args.scales.row_places.raw()),
                     .blocks = static_cast<int>(args.q.size(1)),
                     .rows = args.y.size(0),
                     .columns = args.y.size(1),
                     .first_column = args.first_column};
  auto* const y = reinterpret_cast<Y*>(args.y.raw());
  constexpr std::int64_t kRuns = 2;  // of a warp
  const unsigned grid = grid_of(d.rows * ceil_div(std::int64_t{d.blocks}, std::int64_t{16}), kRuns * kWarps);
  const bool aligned = reinterpret_cast<std::uintptr_t>(y) % 16 == 0 && d.columns % kWordWeights == 0 &&
                       d.first_column % kWordWeights == 0;
  if (aligned) {
    dequantize_kernel<Y, kHead, true><<<grid, kThreads, 0, stream_of(native)>>>(d, y, levels, map_of_scales());
  } else {
    dequantize_kernel<Y, kHead, false><<<grid, kThreads, 0, stream_of(native)>>>(d, y, levels, map_of_scales());
  }
}

}  // namespace

void quantize_nf4(const CudaNative& native, const QuantizeNf4& args) {
  const std::int64_t blocks = args.q.elements();
  if (blocks == 0) return;
  Bounds bounds;
  std::copy(kNf4Bounds.begin(), kNf4Bounds.end(), bounds.v);
  dispatch_device_float(args.x.dtype(), [&](auto tag) {
    using X = decltype(tag);
    const auto* const x = reinterpret_cast<const X*>(args.x.raw());
    auto* const q = reinterpret_cast<std::uint8_t*>(args.q.raw());
    const unsigned grid = grid_of(32 * blocks);
    if (args.q.dtype() == DType::nf4) {
      quantize_kernel<X, kScaleBytes><<<grid, kThreads, 0, stream_of(native)>>>(x, q, {}, blocks, bounds);
      return;
    }
    const Maxima maxima{reinterpret_cast<float*>(args.maxima.raw()),
                        reinterpret_cast<const std::int32_t*>(args.places.raw())};
    quantize_kernel<X, kDoubleScaleBytes><<<grid, kThreads, 0, stream_of(native)>>>(x, q, maxima, blocks, bounds);
  });
}

void encode_nf4_scales(const CudaNative& native, const EncodeNf4Scales& args) {
  const std::int64_t blocks = args.q.elements();
  if (blocks == 0) return;
  encode_kernel<<<grid_of(blocks), kThreads, 0, stream_of(native)>>>(
      reinterpret_cast<const float*>(args.maxima.raw()), reinterpret_cast<const float2*>(args.groups.raw()),
      reinterpret_cast<const std::int32_t*>(args.places.raw()), reinterpret_cast<std::uint8_t*>(args.q.raw()), blocks,
      map_of_scales());
}

void dequantize_nf4(const CudaNative& native, const DequantizeNf4& args) {
  if (args.y.elements() == 0) return;
  dispatch_device_float(args.y.dtype(), [&](auto tag) {
    using Y = decltype(tag);
    if (args.q.dtype() == DType::nf4) {
      dequantize<Y, kScaleBytes>(native, args);
    } else {
      dequantize<Y, kDoubleScaleBytes>(native, args);
    }
  });
}

}  // namespace hawser::ops::cuda
