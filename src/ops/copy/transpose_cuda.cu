// Bytes use the tiles of FP8 quantization, which has their transpose anyway; larger elements go through a tile of 32 x 32.
#include "ops/copy/transpose.h"
#include "ops/cuda/kernel.cuh"
#include "ops/quantize/quantize_tiles.cuh"

namespace hawser::ops::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kTile = 32;

// The bytes of a matrix as rows of `transposed`; blockIdx.z is the matrix.
__global__ void __launch_bounds__(kThreads) bytes_kernel(const std::uint8_t* x, TileTargets to, bool wide) {
  x += blockIdx.z * to.row_count * to.columns;
  to.transposed += blockIdx.z * to.row_count * to.columns;
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
  write_tile(to, tile_row, tile_column, to.columns, bytes, shared);
}

// y[c, r] = x[r, c]; blockIdx.x is the tile, counted along the rows first, blockIdx.y the matrix.
template <class Word>
__global__ void __launch_bounds__(kThreads)
    words_kernel(const Word* x, Word* y, std::int64_t rows, std::int64_t columns, std::int64_t row_tiles) {
  x += blockIdx.y * rows * columns;
  y += blockIdx.y * rows * columns;
  __shared__ Word tile[kTile][kTile + 1];  // the padding avoids conflicts between banks
  const std::int64_t first_row = blockIdx.x % row_tiles * kTile, first_column = blockIdx.x / row_tiles * kTile;
  const int lane = threadIdx.x % kTile;
  for (int i = static_cast<int>(threadIdx.x) / kTile; i < kTile; i += kThreads / kTile) {
    if (first_row + i < rows && first_column + lane < columns) {
      tile[i][lane] = x[(first_row + i) * columns + first_column + lane];
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x) / kTile; i < kTile; i += kThreads / kTile) {
    if (first_row + lane < rows && first_column + i < columns) {
      y[(first_column + i) * rows + first_row + lane] = tile[lane][i];
    }
  }
}

template <class Word>
void transpose_words(const CudaNative& native, const TensorView& x, const TensorView& y, std::int64_t matrices) {
  const std::int64_t rows = x.size(x.rank() - 2), columns = x.size(x.rank() - 1), row_tiles = ceil_div(rows, kTile);
  const dim3 blocks(static_cast<unsigned>(row_tiles * ceil_div(columns, kTile)), static_cast<unsigned>(matrices));
  words_kernel<Word><<<blocks, kThreads, 0, stream_of(native)>>>(
      reinterpret_cast<const Word*>(x.raw()), reinterpret_cast<Word*>(y.raw()), rows, columns, row_tiles);
}

}  // namespace

void transpose(const CudaNative& native, const Transpose& args) {
  const TensorView &x = args.x, &y = args.y;
  if (x.elements() == 0) return;
  const std::int64_t matrices = x.rank() > 2 ? x.size(0) : 1;
  switch (size_of(x.dtype())) {
    case 1: {
      const std::int64_t rows = x.size(x.rank() - 2), columns = x.size(x.rank() - 1);
      dim3 tiles = tiles_of(rows, columns);
      tiles.z = static_cast<unsigned>(matrices);
      const bool wide = reinterpret_cast<std::uintptr_t>(x.raw()) % 8 == 0 && columns % 8 == 0;  // and all matrices
      bytes_kernel<<<tiles, kThreads, 0, stream_of(native)>>>(reinterpret_cast<const std::uint8_t*>(x.raw()),
                                                              targets_of(nullptr, y.raw(), rows, columns), wide);
      return;
    }
    case 2:
      return transpose_words<std::uint16_t>(native, x, y, matrices);
    default:
      return transpose_words<std::uint32_t>(native, x, y, matrices);
  }
}

}  // namespace hawser::ops::cuda
