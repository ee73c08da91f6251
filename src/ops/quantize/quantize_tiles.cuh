// What the CUDA ops that write an Fp8Output share: tiles of a matrix, computed by the op, rounded and written as rows
// and transposed.
#pragma once

#include <cuda_fp8.h>

#include "ops/cuda/kernel.cuh"
#include "ops/quantize/fp8_output.h"
#include "tensor/fp8.h"

namespace hawser::ops::cuda {

constexpr int kTileThreads = 256;

// A tile of 128 rows and 64 columns for each block: a thread has 4 rows and 8 columns. Its 4 bytes of a column are one
// word of `transposed`, so that a warp writes 128 contiguous bytes of each of its columns.
constexpr int kTileRows = 128, kTileColumns = 64, kThreadRows = 4, kThreadColumns = 8;
constexpr int kWords = kTileRows / 4, kWordStride = kWords + 4;

// Where the words of a column of a thread begin in shared memory. The 32 words that a warp writes at a time, of 8
// threads of a row and 4 rows of threads, are in different banks.
__device__ __forceinline__ int word_place(int eighth, int column) {
  return (column * kThreadColumns + eighth) * kWordStride;
}

// 4 x 4 bytes, transposed: of_row(r) has those of row r, columns[c] those of column c.
template <class OfRow>
__device__ __forceinline__ void transpose_bytes(const OfRow& of_row, std::uint32_t (&columns)[4]) {
  const std::uint32_t low01 = __byte_perm(of_row(0), of_row(1), 0x5140),
                      low23 = __byte_perm(of_row(2), of_row(3), 0x5140),
                      high01 = __byte_perm(of_row(0), of_row(1), 0x7362),
                      high23 = __byte_perm(of_row(2), of_row(3), 0x7362);
  columns[0] = __byte_perm(low01, low23, 0x5410);
  columns[1] = __byte_perm(low01, low23, 0x7632);
  columns[2] = __byte_perm(high01, high23, 0x5410);
  columns[3] = __byte_perm(high01, high23, 0x7632);
}

// What a block writes of a tile of bytes: as rows and transposed.
struct TileTargets {
  std::uint8_t* rows;
  std::uint8_t* transposed;
  std::int64_t row_count, columns;
  bool wide_rows, wide_transposed;  // 8-byte and 4-byte stores are aligned
};

// Of the columns before `end`. bytes: of this thread's rows and columns, packed along the columns of each row.
__device__ __forceinline__ void write_tile(const TileTargets& to, std::int64_t tile_row, std::int64_t tile_column,
                                           std::int64_t end, const uint2 (&bytes)[kThreadRows],
                                           std::uint32_t (&shared)[kTileColumns * kWordStride]) {
  const int group = threadIdx.x / kThreadColumns, eighth = threadIdx.x % kThreadColumns;
  const std::int64_t row = tile_row + group * kThreadRows, column = tile_column + eighth * kThreadColumns;
  if (to.rows != nullptr) {
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
      if (row + r >= to.row_count) break;
      std::uint8_t* const at = to.rows + (row + r) * to.columns + column;
      if (to.wide_rows && tile_column % kThreadColumns == 0 && column + kThreadColumns <= end) {
        *reinterpret_cast<uint2*>(at) = bytes[r];
      } else {
        for (int c = 0; c < kThreadColumns && column + c < end; ++c) {
          at[c] = static_cast<std::uint8_t>((c < 4 ? bytes[r].x : bytes[r].y) >> (8 * (c % 4)));
        }
      }
    }
  }
  if (to.transposed == nullptr) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t words[4];
    transpose_bytes([&](int r) { return half == 0 ? bytes[r].x : bytes[r].y; }, words);
#pragma unroll
    for (int c = 0; c < 4; ++c) shared[word_place(eighth, 4 * half + c) + group] = words[c];
  }
  __syncthreads();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int64_t first = tile_row + 4 * lane;
#pragma unroll
  for (int i = 0; i < kTileColumns * 32 / kTileThreads; ++i) {
    const int c = i * kTileThreads / 32 + warp;
    if (tile_column + c >= end) break;
    const std::uint32_t word = shared[word_place(c / kThreadColumns, c % kThreadColumns) + lane];
    std::uint8_t* const at = to.transposed + (tile_column + c) * to.row_count + first;
    if (to.wide_transposed && first + 4 <= to.row_count) {
      *reinterpret_cast<std::uint32_t*>(at) = word;
    } else {
      for (int r = 0; r < 4 && first + r < to.row_count; ++r) at[r] = static_cast<std::uint8_t>(word >> (8 * r));
    }
  }
}

inline TileTargets targets_of(std::byte* rows, std::byte* transposed, std::int64_t row_count, std::int64_t columns) {
  const auto at = [](std::byte* data) { return reinterpret_cast<std::uintptr_t>(data); };
  return {reinterpret_cast<std::uint8_t*>(rows), reinterpret_cast<std::uint8_t*>(transposed),  row_count, columns,
          at(rows) % 8 == 0 && columns % 8 == 0, at(transposed) % 4 == 0 && row_count % 4 == 0};
}

inline dim3 tiles_of(std::int64_t rows, std::int64_t columns) {
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
  return threadIdx.x < 32 ? warp_max(threadIdx.x < kTileThreads / 32 ? shared[threadIdx.x] : 0u) : 0u;
}

// An Fp8Output in kernels.
struct Fp8Target {
  const float* scale;
  TileTargets to;
  float* used;
  const std::int32_t* mask;
  float *amax, *saturated;
  float largest;
  const std::int32_t* limit;  // Fp8Output::row_count
};

inline Fp8Target fp8_target(const Fp8Output& output, std::int64_t rows, std::int64_t columns) {
  const auto floats = [](const TensorView& view) { return view.empty() ? nullptr : view.data<float>(); };
  return {.scale = output.scale.data<float>(),
          .to = targets_of(output.q.raw(), output.transposed.raw(), rows, columns),
          .used = floats(output.used),
          .mask = output.mask.empty() ? nullptr : output.mask.data<std::int32_t>(),
          .amax = floats(output.amax),
          .saturated = floats(output.saturated),
          .largest = largest_fp8(output.dtype()),
          .limit = output.row_count.empty() ? nullptr : output.row_count.data<std::int32_t>()};
}

// The first row and column of this block's tile, and of this thread's part of it.
struct TilePlace {
  std::int64_t tile_row, tile_column, row, column;
};
__device__ __forceinline__ TilePlace tile_place() {
  const std::int64_t tile_row = static_cast<std::int64_t>(blockIdx.y) * kTileRows,
                     tile_column = static_cast<std::int64_t>(blockIdx.x) * kTileColumns;
  return {tile_row, tile_column, tile_row + threadIdx.x / kThreadColumns * kThreadRows,
          tile_column + threadIdx.x % kThreadColumns * kThreadColumns};
}

// count = min(count, row_count); false if this block's tile begins after it.
__device__ __forceinline__ bool limit_rows(const Fp8Target& target, const TilePlace& at, std::int64_t& count) {
  if (target.limit == nullptr) return true;
  if (target.used != nullptr && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *target.used = *target.scale;
  count = min(count, static_cast<std::int64_t>(*target.limit));
  return at.tile_row < count;
}

// This thread's part of a tile: its bytes, and what an Fp8Output counts of them.
template <__nv_fp8_interpretation_t kFormat>
struct TileBytes {
  uint2 bytes[kThreadRows];
  std::uint32_t found = 0, beyond = 0;

  // values: row `r` of the part, with zeros outside of the matrix
  __device__ __forceinline__ void round(int r, const Vec<float, kThreadColumns>& values, float inverse,
                                        const Fp8Target& target, bool inside, std::int64_t row) {
    std::uint32_t words[2] = {0, 0};
#pragma unroll
    for (int c = 0; c < kThreadColumns; c += 2) {
      const float2 scaled = make_float2(values.v[c] * inverse, values.v[c + 1] * inverse);
      const std::uint32_t pair = __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, kFormat);
      words[c / 4] |= pair << (8 * (c % 4));
    }
    bytes[r] = make_uint2(words[0], words[1]);
    if (target.amax == nullptr && target.saturated == nullptr) return;
    if (!inside || (target.mask != nullptr && target.mask[row] == 0)) return;
    std::uint32_t most = 0;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) most = max(most, size_bits(values.v[c]));
    found = max(found, most);
    // The product is monotonic: only a row with a value beyond the largest has to be counted. NaN is beyond.
    if (target.saturated == nullptr || __uint_as_float(most) * inverse <= target.largest) return;
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) beyond += fabsf(values.v[c] * inverse) <= target.largest ? 0 : 1;
  }
};

struct TileMemory {
  std::uint32_t words[kTileColumns * kWordStride];
  std::uint32_t maxima[32];
};

// What an Fp8Output has besides the matrix, of a block's tile. By all threads of the block.
template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ void record_tile(const Fp8Target& target, const TileBytes<kFormat>& tile,
                                            std::uint32_t (&maxima)[32]) {
  if (target.used != nullptr && blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) *target.used = *target.scale;
  if (target.amax != nullptr) {
    const std::uint32_t most = block_max(tile.found, maxima);
    if (threadIdx.x == 0) take_maximum(target.amax, most);
  }
  if (target.saturated != nullptr) {
    const std::uint32_t count = __reduce_add_sync(0xffffffffu, tile.beyond);
    // Sums of whole numbers below 2^24 are exact in any order.
    if (threadIdx.x % 32 == 0 && count > 0) atomicAdd(target.saturated, static_cast<float>(count));
  }
}

// By all threads of the block. The tiles are those of columns [first_column, first_column + columns) of the matrix.
template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ void write(const Fp8Target& target, const TilePlace& at, std::int64_t first_column,
                                      std::int64_t columns, const TileBytes<kFormat>& tile, TileMemory& memory) {
  write_tile(target.to, at.tile_row, first_column + at.tile_column, first_column + columns, tile.bytes, memory.words);
  record_tile(target, tile, memory.maxima);
}

// Elements [column, column + kThreadColumns) of a row of `columns`; zeros outside. kFull: none is outside, and they are
// aligned to 16 bytes.
template <bool kFull, class X>
__device__ __forceinline__ Vec<X, kThreadColumns> part_of_row(const X* row, std::int64_t column, std::int64_t columns) {
  if constexpr (kFull) {
    return load<kThreadColumns>(row + column);
  } else {
    Vec<float, kThreadColumns> out = {};
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      if (column + c < columns) out.v[c] = to_float(row[column + c]);
    }
    return narrow<X>(out);
  }
}

// y of a float, as an op that writes y rounds it.
template <class Y>
__device__ __forceinline__ void round_to(Vec<float, kThreadColumns>& values) {
  values = widen(narrow<Y>(values));
}

// Calls body with true as an integral constant if this block's tile is inside of a matrix whose parts of rows are
// `aligned`, otherwise with false. With true the loads of a thread have no conditions: the compiler issues all of them
// before it needs the first.
template <class Body>
__device__ __forceinline__ void for_tile(const TilePlace& at, std::int64_t rows, std::int64_t columns, bool aligned,
                                         const Body& body) {
  if (aligned && at.tile_row + kTileRows <= rows && at.tile_column + kTileColumns <= columns) {
    body(std::true_type());
  } else {
    body(std::false_type());
  }
}

// Rounds a matrix of `count` rows and `columns` columns.
// Memory traffic bounds the kernel (measured: docs/performance.md), so it reads once what the values are computed from.
// A block has a tile of 128 x 64 elements, a thread 4 rows of 8 columns, whose bytes stay in registers until they are
// written as rows. Shared memory only transposes them. A thread issues all of its loads before it uses the first, if
// the tile is inside the matrix (for_tile).
// amax is a maximum and `saturated` a sum of whole numbers, so that the order of the blocks changes no bit. Limit:
// blockIdx.y counts the tiles of rows, at most 65,535.
// A source has
//   bool wide                                the parts of its rows are aligned to 16 bytes
//   auto of_columns<kFull>(column)          what the values of this thread's columns have in common
//   auto load<kFull>(row, column)           what the values of its part of a row are computed from
//   Vec values(row, of_columns, loaded)      the values, zeros beyond the last column
template <__nv_fp8_interpretation_t kFormat, class Source>
__global__ void __launch_bounds__(kTileThreads)
    quantize_tiles_kernel(Source source, std::int64_t count, std::int64_t columns, Fp8Target target) {
  __shared__ TileMemory memory;
  const TilePlace at = tile_place();
  if (!limit_rows(target, at, count)) return;
  const float inverse = 1.0f / *target.scale;
  TileBytes<kFormat> tile;
  for_tile(at, count, columns, source.wide, [&](auto full) {
    constexpr bool kFull = decltype(full)::value;
    const auto of_columns = source.template of_columns<kFull>(at.column);
    decltype(source.template load<kFull>(0, 0)) loaded[kThreadRows];
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
      if (kFull || at.row + r < count) loaded[r] = source.template load<kFull>(at.row + r, at.column);
    }
#pragma unroll
    for (int r = 0; r < kThreadRows; ++r) {
      const bool inside = kFull || at.row + r < count;
      Vec<float, kThreadColumns> values = {};
      if (inside) values = source.values(at.row + r, of_columns, loaded[r]);
      tile.round(r, values, inverse, target, inside, at.row + r);
    }
  });
  write(target, at, 0, target.to.columns, tile, memory);
}

// Calls body with the format of a dtype as an integral constant.
template <class Body>
void dispatch_fp8_format(DType dtype, const Body& body) {
  if (dtype == DType::f8e4m3) return body(std::integral_constant<__nv_fp8_interpretation_t, __NV_E4M3>());
  body(std::integral_constant<__nv_fp8_interpretation_t, __NV_E5M2>());
}

template <__nv_fp8_interpretation_t kFormat, class Source>
void quantize_tiles(const CudaNative& native, const Source& source, std::int64_t rows, std::int64_t columns,
                    const Fp8Output& output) {
  const dim3 tiles = tiles_of(rows, columns);
  if (tiles.x == 0 || tiles.y == 0) return;
  quantize_tiles_kernel<kFormat>
      <<<tiles, kTileThreads, 0, stream_of(native)>>>(source, rows, columns, fp8_target(output, rows, columns));
}

}  // namespace hawser::ops::cuda
