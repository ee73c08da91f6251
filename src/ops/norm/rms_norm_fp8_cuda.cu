// rms_norm with y in FP8. fused_kernel needs one pass over x. It takes bf16 rows, aligned, of at most
// kFusedBlocks * kFusedColumns columns; their number is a multiple of 16. For others, and before compute capability 9.0,
// a second pass that quantizes follows the one that computes rstd.
#include <cooperative_groups.h>

#include <optional>

#include "ops/norm/rms_norm.h"
#include "ops/norm/rms_norm_cuda.cuh"
#include "ops/quantize/quantize_tiles.cuh"

namespace hawser::ops::cuda {

namespace {

// A part of a normed row, rounded to Act as the kernels that write y round it.
template <class Act, bool kUnitOffset, class Weight>
__device__ __forceinline__ Vec<float, kThreadColumns> normed(const Vec<Act, kThreadColumns>& x, float rstd,
                                                             const Vec<Weight, kThreadColumns>& weights) {
  Vec<float, kThreadColumns> v = widen(x);
  const Vec<float, kThreadColumns> w = factors<kUnitOffset>(weights);
#pragma unroll
  for (int c = 0; c < kThreadColumns; ++c) v.v[c] = v.v[c] * rstd * w.v[c];
  round_to<Act>(v);
  return v;
}

// ---- two passes ----

template <class Act, class Weight, bool kUnitOffset>
struct NormedRows {
  Rows2<const Act> x;
  const Weight* weight;
  const float* rstd;
  bool wide;
  template <bool kFull>
  __device__ __forceinline__ auto of_columns(std::int64_t column) const {
    return part_of_row<kFull>(weight, column, x.columns);
  }
  template <bool kFull>
  __device__ __forceinline__ auto load(std::int64_t row, std::int64_t column) const {
    return part_of_row<kFull>(x.row(row), column, x.columns);
  }
  __device__ __forceinline__ Vec<float, kThreadColumns> values(std::int64_t row,
                                                               const Vec<Weight, kThreadColumns>& weights,
                                                               const Vec<Act, kThreadColumns>& loaded) const {
    return normed<Act, kUnitOffset>(loaded, rstd[row], weights);
  }
};

// ---- one pass ----

// Sizes of fused_kernel. A block has 32 rows and 1,024 columns: a warp has 4 rows, a lane 4 vectors of each.
constexpr int kFusedRows = 32, kFusedVectors = 4, kFusedBlocks = 8;
constexpr int kWarps = kTileThreads / 32, kWarpRows = kFusedRows / kWarps;
constexpr int kFusedWords = 32 * kFusedVectors;  // of 8 bytes, in a row of a block
constexpr int kFusedColumns = kFusedWords * kThreadColumns;
static_assert(kWarpRows == kThreadRows);

struct FusedMemory {
  uint2 bytes[kFusedRows][kFusedWords];
  float squares[kFusedBlocks][kFusedRows];  // sums of each block of the cluster
  std::uint32_t maxima[32];

  // 16 lanes that read 8 words of row r and of row r + 16 use all banks.
  __device__ __forceinline__ uint2& word(int row, int at) { return bytes[row][at ^ (row >= 16 ? 8 : 0)]; }
};

// Columns of `transposed`, of a block's 32 rows: a thread writes 16 rows of 8 columns, two threads 32 bytes of each.
// `column(word)`: the first column of a word of a row.
template <class Column>
__device__ __forceinline__ void write_columns(const TileTargets& to, std::int64_t tile_row, FusedMemory& memory,
                                              const Column& column) {
  constexpr int kRows = 16;
  const int word = threadIdx.x / 2, first = threadIdx.x % 2 * kRows;
  const std::int64_t row = tile_row + first, from = column(word);
  if (row >= to.row_count || from >= to.columns) return;
  uint2 bytes[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) bytes[r] = memory.word(first + r, word);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    std::uint32_t words[kRows / 4][4];
#pragma unroll
    for (int q = 0; q < kRows / 4; ++q) {
      transpose_bytes([&](int r) { return half == 0 ? bytes[4 * q + r].x : bytes[4 * q + r].y; }, words[q]);
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      std::uint8_t* const at = to.transposed + (from + 4 * half + c) * to.row_count + row;
      *reinterpret_cast<uint4*>(at) = make_uint4(words[0][c], words[1][c], words[2][c], words[3][c]);
    }
  }
}

// Memory traffic is the bound to approach, so x is read once and stays in registers from the sum of squares to the
// result; the kernel reaches about 0.7 of the copy rate (measured: docs/performance.md). The transpose needs tiles of
// 32 rows, whose 32 bytes of a column fill a sector of memory. 32 rows of all columns may be too many for one SM, so a
// cluster of up to 8 blocks has them, and the blocks write their sums of squares to each other's shared memory. Shared
// memory also transposes the bytes.
// The columns of a lane and the order of sums are those of forward_kernel (rms_norm_cuda.cu), whose warps correspond to
// the blocks here: rstd has the same bits. Maxima and counts do not depend on an order.
// Limits: clusters need compute capability 9.0; x is bf16, of which a thread holds 128 elements in 64 registers.
template <class Weight, bool kUnitOffset>
__global__ void __launch_bounds__(kTileThreads, 2)
    fused_kernel(Rows2<const Bf> x, const Weight* __restrict__ weight, float* rstd, float epsilon, Fp8Target target) {
#if __CUDA_ARCH__ >= 900
  __shared__ FusedMemory memory;
  const auto cluster = cooperative_groups::this_cluster();
  const int blocks = static_cast<int>(cluster.num_blocks()), part = static_cast<int>(cluster.block_rank());
  auto started = cluster.barrier_arrive();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, own_row = warp * kWarpRows;
  const std::int64_t tile_row = static_cast<std::int64_t>(blockIdx.x / blocks) * kFusedRows, row = tile_row + own_row;
  const auto column = [&](int word) {
    return static_cast<std::int64_t>((word / 32 * blocks + part) * 32 + word % 32) * kThreadColumns;
  };
  Vec<Bf, kThreadColumns> kept[kWarpRows][kFusedVectors];
  if (tile_row + kFusedRows <= x.count && x.columns == static_cast<std::int64_t>(blocks) * kFusedColumns) {
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
#pragma unroll
      for (int k = 0; k < kFusedVectors; ++k) {
        kept[r][k] = load<kThreadColumns>(x.row(row + r) + column(32 * k + lane));
      }
    }
  } else {
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
#pragma unroll
      for (int k = 0; k < kFusedVectors; ++k) {
        kept[r][k] = {};
        const std::int64_t at = column(32 * k + lane);
        if (row + r < x.count && at < x.columns) kept[r][k] = load<kThreadColumns>(x.row(row + r) + at);
      }
    }
  }
  float sums[kWarpRows];
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
    float squares = 0;
#pragma unroll
    for (int k = 0; k < kFusedVectors; ++k) {
      const Vec<float, kThreadColumns> v = widen(kept[r][k]);
#pragma unroll
      for (int i = 0; i < kThreadColumns; ++i) squares += v.v[i] * v.v[i];
    }
    sums[r] = warp_sum(squares);
  }
  // All blocks of the cluster run: their shared memory is there.
  cluster.barrier_wait(std::move(started));
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
    if (lane < blocks) *cluster.map_shared_rank(&memory.squares[part][own_row + r], lane) = sums[r];
  }
  cluster.sync();
  float factors_of_rows[kWarpRows];
  bool counted[kWarpRows];
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
    const float squares = warp_sum(lane < blocks ? memory.squares[lane][own_row + r] : 0.0f);
    const float mean = squares / static_cast<float>(x.columns);
    factors_of_rows[r] = 1.0f / sqrtf(mean + epsilon);
    counted[r] = row + r < x.count && (target.mask == nullptr || target.mask[row + r] != 0);
    if (part == 0 && lane == 0 && row + r < x.count) rstd[row + r] = factors_of_rows[r];
  }
  const float inverse = 1.0f / *target.scale;
  target.mask = nullptr;  // in `counted`
  TileBytes<__NV_E4M3> tile;
#pragma unroll
  for (int k = 0; k < kFusedVectors; ++k) {
    const std::int64_t at = column(32 * k + lane);
    if (at >= x.columns) continue;
    const Vec<Weight, kThreadColumns> weights = load<kThreadColumns>(weight + at);
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      tile.round(r, normed<Bf, kUnitOffset>(kept[r][k], factors_of_rows[r], weights), inverse, target, counted[r],
                 row + r);
      if (target.to.rows != nullptr && row + r < x.count) {
        *reinterpret_cast<uint2*>(target.to.rows + (row + r) * x.columns + at) = tile.bytes[r];
      }
      if (target.to.transposed != nullptr) memory.word(own_row + r, 32 * k + lane) = tile.bytes[r];
    }
  }
  if (target.to.transposed != nullptr) {
    __syncthreads();
    write_columns(target.to, tile_row, memory, column);
  }
  record_tile(target, tile, memory.maxima);
#else
  __trap();
#endif
}

bool multiple(const std::byte* data, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(data) % bytes == 0;
}

// The blocks of a cluster of fused_kernel, if it takes these rows. It takes rows of whole vectors, and columns of whole
// 16 bytes.
std::optional<int> fused_blocks(const RmsNormForward& args) {
  const std::int64_t rows = args.x.size(0), columns = args.x.size(1), blocks = ceil_div(columns, kFusedColumns);
  const bool fits = args.x.dtype() == DType::bf16 && aligned<kThreadColumns>({args.x}) &&
                    multiple(args.weight.raw(), 16) && multiple(args.fp8.q.raw(), 8) &&
                    multiple(args.fp8.transposed.raw(), 16) && rows % 16 == 0 && blocks <= kFusedBlocks;
  return fits ? std::optional(static_cast<int>(blocks)) : std::nullopt;
}

}  // namespace

bool rms_norm_fp8_in_one_pass(const CudaNative& native, const RmsNormForward& args) {
  const std::optional<int> blocks = fused_blocks(args);
  if (!blocks || native.limits.capability < 90) return false;
  const auto x = rows2<Bf>(args.x);
  if (x.count == 0) return true;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(*blocks), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(ceil_div(x.count, kFusedRows) * *blocks));
  config.blockDim = dim3(kTileThreads);
  config.stream = stream_of(native);
  config.attrs = &cluster;
  config.numAttrs = 1;
  dispatch_norm(args, [&](auto, auto weight, auto unit_offset) {
    using Weight = decltype(weight);
    HAWSER_CUDA_CHECK(cudaLaunchKernelEx(&config, fused_kernel<Weight, decltype(unit_offset)::value>,
                                         Rows2<const Bf>{x.data, x.count, x.columns, x.stride},
                                         reinterpret_cast<const Weight*>(args.weight.raw()), args.rstd.data<float>(),
                                         static_cast<float>(args.epsilon), fp8_target(args.fp8, x.count, x.columns)));
  });
  return true;
}

void rms_norm_fp8(const CudaNative& native, const RmsNormForward& args) {
  dispatch_norm(args, [&](auto act, auto weight, auto unit_offset) {
    using Act = decltype(act);
    using Weight = decltype(weight);
    const auto x = rows2<Act>(args.x);
    const auto* const factors = reinterpret_cast<const Weight*>(args.weight.raw());
    const bool wide = aligned<kThreadColumns>({args.x}) && reinterpret_cast<std::uintptr_t>(factors) % 16 == 0;
    const NormedRows<Act, Weight, decltype(unit_offset)::value> rows{
        {x.data, x.count, x.columns, x.stride}, factors, args.rstd.data<float>(), wide};
    quantize_tiles<__NV_E4M3>(native, rows, x.count, x.columns, args.fp8);
  });
}

}  // namespace hawser::ops::cuda
