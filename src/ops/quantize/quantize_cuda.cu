#include <cuda_fp8.h>

#include "ops/copy/transpose.h"
#include "ops/cuda/kernel.cuh"
#include "ops/quantize/quantize.h"
#include "ops/quantize/scale_of.h"

namespace hawser::ops::cuda {

namespace {

constexpr int kThreads = 256;

// A tile of 128 rows and 64 columns for each block: a thread has 4 rows and 8 columns. Its 4 bytes of a column are one
// word of `transposed`, so that a warp writes 128 contiguous bytes of each of its columns.
constexpr int kTileRows = 128, kTileColumns = 64, kThreadRows = 4, kThreadColumns = 8;
constexpr int kWords = kTileRows / 4, kWordStride = kWords + 1;

// What a block writes of a tile of bytes: as rows and transposed.
struct TileTargets {
  std::uint8_t* rows;
  std::uint8_t* transposed;
  std::int64_t row_count, columns;
  bool wide_rows, wide_transposed;  // 8-byte and 4-byte stores are aligned
};

// bytes: of this thread's rows from `row` and columns from `column`, packed along the columns of each row.
__device__ void write_tile(const TileTargets& to, std::int64_t tile_row, std::int64_t tile_column,
                           const uint2 (&bytes)[kThreadRows], std::uint32_t (&shared)[kTileColumns * kWordStride]) {
  const int group = threadIdx.x / kThreadColumns, eighth = threadIdx.x % kThreadColumns;
  const std::int64_t row = tile_row + group * kThreadRows, column = tile_column + eighth * kThreadColumns;
  if (to.rows != nullptr) {
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
      if (row + r >= to.row_count) break;
      std::uint8_t* const at = to.rows + (row + r) * to.columns + column;
      if (to.wide_rows && column + kThreadColumns <= to.columns) {
        *reinterpret_cast<uint2*>(at) = bytes[r];
      } else {
        for (int c = 0; c < kThreadColumns && column + c < to.columns; ++c) {
          at[c] = static_cast<std::uint8_t>((c < 4 ? bytes[r].x : bytes[r].y) >> (8 * (c % 4)));
        }
      }
    }
  }
  if (to.transposed == nullptr) return;
#pragma unroll
  for (int c = 0; c < kThreadColumns; ++c) {
    std::uint32_t word = 0;
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
      word |= (((c < 4 ? bytes[r].x : bytes[r].y) >> (8 * (c % 4))) & 0xffu) << (8 * r);
    }
    shared[(eighth * kThreadColumns + c) * kWordStride + group] = word;
  }
  __syncthreads();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t first = tile_row + 4 * lane;
  for (int c = warp; c < kTileColumns && tile_column + c < to.columns; c += kThreads / 32) {
    const std::uint32_t word = shared[c * kWordStride + lane];
    std::uint8_t* const at = to.transposed + (tile_column + c) * to.row_count + first;
    if (to.wide_transposed && first + 4 <= to.row_count) {
      *reinterpret_cast<std::uint32_t*>(at) = word;
    } else {
      for (int r = 0; r < 4 && first + r < to.row_count; ++r) at[r] = static_cast<std::uint8_t>(word >> (8 * r));
    }
  }
}

TileTargets targets_of(std::byte* rows, std::byte* transposed, std::int64_t row_count, std::int64_t columns) {
  const auto at = [](std::byte* data) { return reinterpret_cast<std::uintptr_t>(data); };
  return {reinterpret_cast<std::uint8_t*>(rows), reinterpret_cast<std::uint8_t*>(transposed),  row_count, columns,
          at(rows) % 8 == 0 && columns % 8 == 0, at(transposed) % 4 == 0 && row_count % 4 == 0};
}

dim3 tiles_of(std::int64_t rows, std::int64_t columns) {
  return dim3(static_cast<unsigned>(ceil_div(columns, kTileColumns)), static_cast<unsigned>(ceil_div(rows, kTileRows)));
}

__device__ __forceinline__ std::uint32_t size_bits(float value) {
  return __float_as_uint(value) & 0x7fffffffu;
}

__device__ __forceinline__ std::uint32_t warp_max(std::uint32_t value) {
  return __reduce_max_sync(0xffffffffu, value);
}

// NaNs are above all other absolute values; the one that is stored has the bits that the CPU writes.
__device__ __forceinline__ void take_maximum(float* to, std::uint32_t bits) {
  if (bits > 0x7f800000u) bits = 0x7fc00000u;
  auto* const word = reinterpret_cast<std::uint32_t*>(to);
  if (*reinterpret_cast<volatile std::uint32_t*>(word) < bits) atomicMax(word, bits);
}

// The largest bits of the block's warps, in thread 0.
__device__ __forceinline__ std::uint32_t block_max(std::uint32_t value, std::uint32_t* shared) {
  value = warp_max(value);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  return threadIdx.x < 32 ? warp_max(threadIdx.x < kThreads / 32 ? shared[threadIdx.x] : 0u) : 0u;
}

struct Record {
  float* used;
  const std::int32_t* mask;
  float* amax;
  float* saturated;
};

template <class X, __nv_fp8_interpretation_t kFormat>
__global__ void __launch_bounds__(kThreads)
    quantize_kernel(Rows2<const X> x, const float* scale, TileTargets to, Record record, bool wide, float largest) {
  __shared__ std::uint32_t shared[kTileColumns * kWordStride];
  __shared__ std::uint32_t maxima[32];
  const std::int64_t tile_row = static_cast<std::int64_t>(blockIdx.y) * kTileRows,
                     tile_column = static_cast<std::int64_t>(blockIdx.x) * kTileColumns;
  const std::int64_t row = tile_row + threadIdx.x / kThreadColumns * kThreadRows,
                     column = tile_column + threadIdx.x % kThreadColumns * kThreadColumns;
  const float inverse = 1.0f / *scale;
  if (record.used != nullptr && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *record.used = *scale;
  Vec<float, kThreadColumns> values[kThreadRows];
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    values[r] = {};
    if (row + r >= x.count || column >= x.columns) continue;
    const X* const from = x.row(row + r) + column;
    if (wide) {
      values[r] = load_float<kThreadColumns>(from);
    } else {
#pragma unroll
      for (int c = 0; c < kThreadColumns; ++c) {
        if (column + c < x.columns) values[r].v[c] = to_float(from[c]);
      }
    }
  }
  std::uint32_t found = 0, beyond = 0;
  uint2 bytes[kThreadRows];
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    const bool counted = row + r < x.count && (record.mask == nullptr || record.mask[row + r] != 0);
    std::uint32_t words[2] = {0, 0};
#pragma unroll
    for (int c = 0; c < kThreadColumns; c += 2) {
      const float a = values[r].v[c] * inverse, b = values[r].v[c + 1] * inverse;
      const std::uint32_t pair = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, kFormat);
      words[c / 4] |= pair << (8 * (c % 4));
      if (!counted) continue;
      found = max(found, max(size_bits(values[r].v[c]), size_bits(values[r].v[c + 1])));
      beyond += (fabsf(a) <= largest ? 0 : 1) + (fabsf(b) <= largest ? 0 : 1);
    }
    bytes[r] = make_uint2(words[0], words[1]);
  }
  write_tile(to, tile_row, tile_column, bytes, shared);
  if (record.amax != nullptr) {
    const std::uint32_t most = block_max(found, maxima);
    if (threadIdx.x == 0) take_maximum(record.amax, most);
  }
  if (record.saturated != nullptr) {
    const std::uint32_t count = __reduce_add_sync(0xffffffffu, beyond);
    // Sums of whole numbers below 2^24 are exact in any order.
    if (threadIdx.x % 32 == 0 && count > 0) atomicAdd(record.saturated, static_cast<float>(count));
  }
}

template <class X>
void quantize_rows(const CudaNative& native, const Quantize& args) {
  const TensorView& q = args.q.empty() ? args.transposed : args.q;
  const auto x = rows2<X>(args.x);
  const Rows2<const X> from{x.data, x.count, x.columns, x.stride};
  const TileTargets to = targets_of(args.q.raw(), args.transposed.raw(), x.count, x.columns);
  const Record record{args.used.empty() ? nullptr : args.used.data<float>(),
                      args.mask.empty() ? nullptr : args.mask.data<std::int32_t>(),
                      args.amax.empty() ? nullptr : args.amax.data<float>(),
                      args.saturated.empty() ? nullptr : args.saturated.data<float>()};
  const bool wide = aligned<kThreadColumns>({args.x});
  const dim3 tiles = tiles_of(x.count, x.columns);
  if (tiles.x == 0 || tiles.y == 0) return;
  const auto launch = [&](auto kernel) {
    kernel<<<tiles, kThreads, 0, stream_of(native)>>>(from, args.scale.data<float>(), to, record, wide,
                                                      largest_fp8(q.dtype()));
  };
  if (q.dtype() == DType::f8e4m3) {
    launch(quantize_kernel<X, __NV_E4M3>);
  } else {
    launch(quantize_kernel<X, __NV_E5M2>);
  }
}

// `columns` of a row for each thread of a warp's share; rows are strided over the grid.
template <class X, int N>
__global__ void __launch_bounds__(kThreads) amax_kernel(Rows2<const X> x, const std::int32_t* mask, float* out) {
  __shared__ std::uint32_t maxima[32];
  const std::int64_t across = ceil_div(x.columns, N), count = x.count * across;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  std::uint32_t found = 0;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
    const std::int64_t row = i / across, column = i % across * N;
    if (mask != nullptr && mask[row] == 0) continue;
    const Vec<float, N> values = load_float<N>(x.row(row) + column);
#pragma unroll
    for (int c = 0; c < N; ++c) found = max(found, size_bits(values.v[c]));
  }
  const std::uint32_t most = block_max(found, maxima);
  if (threadIdx.x == 0) take_maximum(out, most);
}

__global__ void scales_kernel(const float* amaxes, float* scales, std::int64_t count, ScaleOf of, bool keeps,
                              float otherwise) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float amax = amaxes[i];
  if (isfinite(amax) && amax != 0) {
    scales[i] = of(amax);
  } else if (!keeps) {
    scales[i] = otherwise;
  }
}

__global__ void delayed_kernel(const float* amaxes, float* history, float* scales, const std::int32_t* skip,
                               std::int64_t count, std::int64_t length, bool most_recent, std::int32_t refreshes,
                               ScaleOf of_x, ScaleOf of_dy) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count || (*skip != 0 && *skip != refreshes)) return;
  const float amax = amaxes[i];
  if (!isfinite(amax) || amax == 0) return;
  float* const row = history + i * length;
  float most = amax;
  for (std::int64_t h = length - 1; h > 0; --h) {
    row[h] = row[h - 1];
    most = fmaxf(most, row[h]);
  }
  row[0] = amax;
  scales[i] = (i % 2 == 0 ? of_x : of_dy)(most_recent ? amax : most);
}

// Once a run, for weights: not tuned.
template <class Y>
__global__ void __launch_bounds__(kThreads) dequantize_kernel(const std::uint8_t* q, const float* scale, Y* y,
                                                              std::int64_t count, __nv_fp8_interpretation_t format) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kThreads;
  const float factor = *scale;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count; i += step) {
    const __half_raw value = __nv_cvt_fp8_to_halfraw(q[i], format);  // exact
    y[i] = from_float<Y>(factor * __half2float(__half(value)));
  }
}

// The bytes of a matrix as rows of `transposed`.
__global__ void __launch_bounds__(kThreads) transpose_kernel(const std::uint8_t* x, TileTargets to, bool wide) {
  __shared__ std::uint32_t shared[kTileColumns * kWordStride];
  const std::int64_t tile_row = static_cast<std::int64_t>(blockIdx.y) * kTileRows,
                     tile_column = static_cast<std::int64_t>(blockIdx.x) * kTileColumns;
  const std::int64_t row = tile_row + threadIdx.x / kThreadColumns * kThreadRows,
                     column = tile_column + threadIdx.x % kThreadColumns * kThreadColumns;
  uint2 bytes[kThreadRows];
#pragma unroll
  for (int r = 0; r < kThreadRows; ++r) {
    bytes[r] = make_uint2(0, 0);
    if (row + r >= to.row_count || column >= to.columns) continue;
    const std::uint8_t* const from = x + (row + r) * to.columns + column;
    if (wide) {
      bytes[r] = *reinterpret_cast<const uint2*>(from);
    } else {
      for (int c = 0; c < kThreadColumns && column + c < to.columns; ++c) {
        (c < 4 ? bytes[r].x : bytes[r].y) |= static_cast<std::uint32_t>(from[c]) << (8 * (c % 4));
      }
    }
  }
  write_tile(to, tile_row, tile_column, bytes, shared);
}

}  // namespace

void quantize(const CudaNative& native, const Quantize& args) {
  dispatch_device_float(args.x.dtype(), [&](auto tag) { quantize_rows<decltype(tag)>(native, args); });
}

void dequantize(const CudaNative& native, const Dequantize& args) {
  const std::int64_t count = args.q.elements();
  if (count == 0) return;
  dispatch_device_float(args.y.dtype(), [&](auto tag) {
    using Y = decltype(tag);
    const auto blocks = static_cast<unsigned>(std::clamp<std::int64_t>(ceil_div(count, kThreads * 8), 1, 1056));
    dequantize_kernel<Y><<<blocks, kThreads, 0, stream_of(native)>>>(
        reinterpret_cast<const std::uint8_t*>(args.q.raw()), args.scale.data<float>(),
        reinterpret_cast<Y*>(args.y.raw()), count, args.q.dtype() == DType::f8e4m3 ? __NV_E4M3 : __NV_E5M2);
  });
}

void amax(const CudaNative& native, const Amax& args) {
  const cudaStream_t stream = stream_of(native);
  if (!args.accumulate) HAWSER_CUDA_CHECK(cudaMemsetAsync(args.out.raw(), 0, sizeof(float), stream));
  if (args.x.elements() == 0) return;
  dispatch_device_float(args.x.dtype(), [&](auto tag) {
    using X = decltype(tag);
    constexpr int kWide = 16 / sizeof(X);
    const auto* const mask = args.mask.empty() ? nullptr : args.mask.data<std::int32_t>();
    const TensorView matrix =
        args.x.rank() == 1 ? args.x.reshape(mask == nullptr ? Shape{1, args.x.size(0)} : Shape{args.x.size(0), 1})
                           : args.x;
    const bool wide = aligned<kWide>({matrix});
    const auto rows = rows2<X>(matrix);
    const Rows2<const X> x{rows.data, rows.count, rows.columns, rows.stride};
    const std::int64_t items = x.count * ceil_div(x.columns, wide ? kWide : 1);
    const auto blocks = static_cast<unsigned>(std::clamp<std::int64_t>(ceil_div(items, kThreads * 8), 1, 1056));
    if (wide) {
      amax_kernel<X, kWide><<<blocks, kThreads, 0, stream>>>(x, mask, args.out.data<float>());
    } else {
      amax_kernel<X, 1><<<blocks, kThreads, 0, stream>>>(x, mask, args.out.data<float>());
    }
  });
}

void scales_of_amaxes(const CudaNative& native, const ScalesOfAmaxes& args) {
  const std::int64_t count = args.amax.elements();
  if (count == 0) return;
  scales_kernel<<<static_cast<unsigned>(ceil_div(count, 128)), 128, 0, stream_of(native)>>>(
      args.amax.data<float>(), args.scales.data<float>(), count, scale_of(args.dtype, args.rule),
      !args.otherwise.has_value(), args.otherwise.value_or(0));
}

void delayed_scales(const CudaNative& native, const DelayedScales& args) {
  const std::int64_t count = args.history.size(0);
  if (count == 0) return;
  delayed_kernel<<<static_cast<unsigned>(ceil_div(count, 128)), 128, 0, stream_of(native)>>>(
      args.amax.data<float>(), args.history.data<float>(), args.scales.data<float>(), args.skip.data<std::int32_t>(),
      count, args.history.size(1), args.most_recent, args.refreshes, scale_of(DType::f8e4m3, args.rule),
      scale_of(DType::f8e5m2, args.rule));
}

void transpose(const CudaNative& native, const Transpose& args) {
  HAWSER_CHECK(size_of(args.x.dtype()) == 1, "transpose: ", to_string(args.x.dtype()), " has no backend for cuda");
  const std::int64_t rows = args.x.size(0), columns = args.x.size(1);
  const dim3 tiles = tiles_of(rows, columns);
  if (tiles.x == 0 || tiles.y == 0) return;
  const bool wide = reinterpret_cast<std::uintptr_t>(args.x.raw()) % 8 == 0 && columns % 8 == 0;
  transpose_kernel<<<tiles, kThreads, 0, stream_of(native)>>>(reinterpret_cast<const std::uint8_t*>(args.x.raw()),
                                                              targets_of(nullptr, args.y.raw(), rows, columns), wide);
}

}  // namespace hawser::ops::cuda
