// CUDA kernel of quantize_blocks, for any shape.
#include "ops/quantize/block_scale.h"
#include "ops/quantize/quantize_blocks.h"
#include "ops/quantize/quantize_tiles.cuh"

namespace hawser::ops::cuda {

namespace {

constexpr int kSide = static_cast<int>(kScaleBlock);
constexpr int kBlockThreads = 256;
// A thread has 8 x 8 elements; 16 threads have the 128 columns of 8 rows, 16 such groups the rows.
constexpr int kPart = 8, kGroups = kSide / kPart;
constexpr int kPairStride = kGroups + 1;  // of a column in shared memory, in 8 bytes

// What a tile is written to: a matrix [rows, columns].
struct BlockMatrix {
  std::uint8_t* q;
  float* scales;
  std::int64_t rows, columns;
  bool wide;  // 8-byte stores are aligned
};

BlockMatrix block_matrix(const TensorView& q, const TensorView& scales) {
  if (q.empty()) return {};
  return {reinterpret_cast<std::uint8_t*>(q.raw()), scales.data<float>(), q.size(0), q.size(1),
          reinterpret_cast<std::uintptr_t>(q.raw()) % 8 == 0 && q.size(1) % 8 == 0};
}

struct BlockMemory {
  std::uint32_t rows[kSide], columns[kSide];  // bits of the maxima
  float of_rows[kSide], of_columns[kSide];    // inverse scales
  uint2 pairs[kSide * kPairStride];           // bytes of the transposed tile
};

// Where 8 bytes of a column of the tile are: those of 16 threads with the same rows are in different banks.
__device__ __forceinline__ int pair_place(int column, int group) {
  return (column % kPart * kGroups + column / kPart) * kPairStride + group;
}

// Writes the scales of a tile whose first element is (line, first) of the matrix; a line is a row of it. 128 threads
// call it: thread `lane` has the bits of its line's amax. It also writes the inverse scale of the line, and the zeros
// after the scales of a row.
template <ScaleKind kKind>
__device__ __forceinline__ void write_scales(const BlockMatrix& to, std::int64_t line, std::int64_t first, int lane,
                                             std::uint32_t most, BlockScale of, float* inverse) {
  const float scale = of(most);
  inverse[lane] = 1.0f / scale;
  if (kKind == ScaleKind::vec128) {
    const std::int64_t stride = round_up(to.rows, kScaleRow);
    if (line + lane < stride) to.scales[first / kSide * stride + line + lane] = line + lane < to.rows ? scale : 0.0f;
    return;
  }
  const std::int64_t across = ceil_div(to.columns, kScaleBlock), stride = round_up(across, kScaleRow);
  float* const row = to.scales + line / kSide * stride;
  if (lane == 0) row[first / kSide] = scale;
  if (first / kSide == across - 1 && lane < stride - across) row[across + lane] = 0.0f;
}

// Two bytes, the first one low.
template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ std::uint32_t to_bytes(float first, float second) {
  return __nv_cvt_float2_to_fp8x2(make_float2(first, second), __NV_SATFINITE, kFormat);
}

__device__ __forceinline__ void store_bytes(const BlockMatrix& to, std::int64_t line, std::int64_t first, uint2 bytes) {
  if (line >= to.rows || first >= to.columns) return;
  std::uint8_t* const at = to.q + line * to.columns + first;
  if (to.wide) {
    *reinterpret_cast<uint2*>(at) = bytes;
    return;
  }
  for (int i = 0; i < kPart && first + i < to.columns; ++i) {
    at[i] = static_cast<std::uint8_t>((i < 4 ? bytes.x : bytes.y) >> (8 * (i % 4)));
  }
}

// The maxima of the tile's rows and columns, in shared memory.
template <class X>
__device__ __forceinline__ void take_maxima(const Vec<X, kPart> (&loaded)[kPart], const bool (&counted)[kPart],
                                            int group, int eighth, BlockMemory& memory) {
  std::uint32_t of_columns[kPart] = {};
#pragma unroll
  for (int r = 0; r < kPart; ++r) {
    const Vec<float, kPart> values = widen(loaded[r]);
    std::uint32_t of_row = 0;
#pragma unroll
    for (int c = 0; c < kPart; ++c) {
      const std::uint32_t size = counted[r] ? size_bits(values.v[c]) : 0;
      of_row = max(of_row, size);
      of_columns[c] = max(of_columns[c], size);
    }
#pragma unroll
    for (int offset = kGroups / 2; offset > 0; offset /= 2) {
      of_row = max(of_row, __shfl_xor_sync(0xffffffffu, of_row, offset));
    }
    if (eighth == 0) memory.rows[group * kPart + r] = of_row;
  }
#pragma unroll
  for (int c = 0; c < kPart; ++c) {
    const std::uint32_t both = max(of_columns[c], __shfl_xor_sync(0xffffffffu, of_columns[c], kGroups));
    if (group % 2 == 0) atomicMax(&memory.columns[eighth * kPart + c], both);
  }
}

// Memory traffic bounds the kernel (measured: docs/performance.md), so x is read once. A scale belongs to 128 elements
// of a row or of a column, or to 128 x 128 elements: a block has a tile of 128 x 128, which determines all of its
// scales. A thread has 8 x 8 elements in registers, unrounded, since q and transposed may round them by different
// scales.
// Shared memory has the maxima and the inverse scales, and transposes the bytes: 16 threads write 128 contiguous bytes
// of a row or of a column. One half of the threads writes the scales of q, the other half those of transposed.
// A maximum does not depend on the order, so that atomics on those of columns are deterministic.
// Limit: blockIdx.y counts the tiles of rows, at most 65,535.
template <ScaleKind kKind, __nv_fp8_interpretation_t kFormat, class X>
__global__ void __launch_bounds__(kBlockThreads)
    quantize_blocks_kernel(Rows2<const X> x, const std::int32_t* mask, bool wide, BlockMatrix q, BlockMatrix transposed,
                           BlockScale of) {
  __shared__ BlockMemory memory;
  const int thread = static_cast<int>(threadIdx.x), group = thread / kGroups, eighth = thread % kGroups;
  const std::int64_t tile_row = static_cast<std::int64_t>(blockIdx.y) * kSide,
                     tile_column = static_cast<std::int64_t>(blockIdx.x) * kSide;
  const std::int64_t row = tile_row + group * kPart, column = tile_column + eighth * kPart;
  if (thread < kSide) memory.columns[thread] = 0;
  Vec<X, kPart> loaded[kPart];
  bool counted[kPart];
#pragma unroll
  for (int r = 0; r < kPart; ++r) {
    const bool inside = row + r < x.count;
    loaded[r] = narrow<X>(Vec<float, kPart>{});
    if (inside) {
      loaded[r] = wide && column < x.columns ? part_of_row<true>(x.row(row + r), column, x.columns)
                                             : part_of_row<false>(x.row(row + r), column, x.columns);
    }
    counted[r] = inside && (mask == nullptr || mask[row + r] != 0);
  }
  __syncthreads();
  take_maxima(loaded, counted, group, eighth, memory);
  __syncthreads();
  const int lane = thread % kSide;
  std::uint32_t most = thread < kSide ? memory.rows[lane] : memory.columns[lane];
  if (kKind == ScaleKind::block128) {
    most = warp_max(max(max(memory.rows[lane % 32], memory.rows[32 + lane % 32]),
                        max(memory.rows[64 + lane % 32], memory.rows[96 + lane % 32])));
  }
  if (thread < kSide) {
    if (q.q != nullptr) write_scales<kKind>(q, tile_row, tile_column, lane, most, of, memory.of_rows);
  } else if (transposed.q != nullptr) {
    write_scales<kKind>(transposed, tile_column, tile_row, lane, most, of, memory.of_columns);
  }
  __syncthreads();
  if (q.q != nullptr) {
#pragma unroll
    for (int r = 0; r < kPart; ++r) {
      const Vec<float, kPart> values = widen(loaded[r]);
      const float inverse = memory.of_rows[group * kPart + r];
      std::uint32_t words[2] = {0, 0};
#pragma unroll
      for (int c = 0; c < kPart; c += 2) {
        words[c / 4] |= to_bytes<kFormat>(values.v[c] * inverse, values.v[c + 1] * inverse) << (8 * (c % 4));
      }
      store_bytes(q, row + r, column, make_uint2(words[0], words[1]));
    }
  }
  if (transposed.q == nullptr) return;
  uint2 bytes[kPart] = {};
#pragma unroll
  for (int r = 0; r < kPart; r += 2) {
    const Vec<float, kPart> first = widen(loaded[r]), second = widen(loaded[r + 1]);
#pragma unroll
    for (int c = 0; c < kPart; ++c) {
      const float inverse = memory.of_columns[eighth * kPart + c];
      (r < 4 ? bytes[c].x : bytes[c].y) |= to_bytes<kFormat>(first.v[c] * inverse, second.v[c] * inverse)
                                           << (8 * (r % 4));
    }
  }
#pragma unroll
  for (int c = 0; c < kPart; ++c) memory.pairs[pair_place(eighth * kPart + c, group)] = bytes[c];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kSide * kGroups / kBlockThreads; ++i) {
    const int line = i * kBlockThreads / kGroups + group;
    store_bytes(transposed, tile_column + line, tile_row + eighth * kPart, memory.pairs[pair_place(line, eighth)]);
  }
}

template <ScaleKind kKind, class X>
void launch(const CudaNative& native, const QuantizeBlocks& args) {
  const auto rows = rows2<X>(args.x);
  const Rows2<const X> x{rows.data, rows.count, rows.columns, rows.stride};
  const dim3 tiles(static_cast<unsigned>(ceil_div(x.columns, kScaleBlock)),
                   static_cast<unsigned>(ceil_div(x.count, kScaleBlock)));
  if (tiles.x == 0 || tiles.y == 0) return;
  const auto* const mask = args.mask.empty() ? nullptr : args.mask.data<std::int32_t>();
  dispatch_fp8_format(args.dtype(), [&](auto format) {
    quantize_blocks_kernel<kKind, decltype(format)::value, X><<<tiles, kBlockThreads, 0, stream_of(native)>>>(
        x, mask, aligned<kPart>({args.x}), block_matrix(args.q, args.scales),
        block_matrix(args.transposed, args.transposed_scales), BlockScale{scale_of(args.dtype(), args.rule)});
  });
}

}  // namespace

void quantize_blocks(const CudaNative& native, const QuantizeBlocks& args) {
  dispatch_device_float(args.x.dtype(), [&](auto tag) {
    using X = decltype(tag);
    args.kind == ScaleKind::vec128 ? launch<ScaleKind::vec128, X>(native, args)
                                   : launch<ScaleKind::block128, X>(native, args);
  });
}

}  // namespace hawser::ops::cuda
