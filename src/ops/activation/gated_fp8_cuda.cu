#include "ops/activation/gated_cuda.cuh"
#include "ops/quantize/quantize_tiles.cuh"

namespace hawser::ops::cuda {

namespace {

template <class Act, Gate kKind>
struct GatedRows {
  Rows2<const Act> gate_up;
  std::int64_t hidden;
  bool wide;

  struct Part {
    Vec<Act, kThreadColumns> gate, up;
  };
  template <bool kFull>
  __device__ __forceinline__ int of_columns(std::int64_t) const {
    return 0;
  }
  template <bool kFull>
  __device__ __forceinline__ Part load(std::int64_t row, std::int64_t column) const {
    const Act* const from = gate_up.row(row);
    return {part_of_row<kFull>(from, column, hidden), part_of_row<kFull>(from + hidden, column, hidden)};
  }
  __device__ __forceinline__ Vec<float, kThreadColumns> values(std::int64_t, int, const Part& part) const {
    Vec<float, kThreadColumns> y = widen(part.gate);
    const Vec<float, kThreadColumns> up = widen(part.up);
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) y.v[c] = gate_point<Act, kKind>(y.v[c]).value * up.v[c];
    round_to<Act>(y);
    return y;
  }
};

// The rows that a thread loads before it computes the first: more would leave too few threads to hide the latency of
// memory.
constexpr int kRowsAtOnce = 2;

// A block has a tile of each of dgate, dup and, with kAgain, y. Memory traffic bounds the kernel (measured:
// docs/performance.md), so all of them are computed in one pass over gate, up and dy. A thread has 4 rows of 8 columns
// and keeps the bytes of its outputs in registers; it loads kRowsAtOnce rows at a time, so that 4 blocks fit an SM, or
// 3 with kAgain. The tiles use one TileMemory for their transposes, one after the other, with barriers between them.
// Elements do not depend on each other, and maxima and counts do not depend on an order.
template <class Act, Gate kKind, bool kAgain>
__global__ void __launch_bounds__(kTileThreads, kAgain ? 3 : 4)
    backward_kernel(Rows2<const Act> gate_up, Rows2<const Act> dy, bool wide, Fp8Target input, Fp8Target output) {
  __shared__ TileMemory memory;
  const TilePlace at = tile_place();
  std::int64_t count = dy.count;
  bool there = limit_rows(input, at, count);
  if constexpr (kAgain) there = limit_rows(output, at, count);
  if (!there) return;
  const float inverse = 1.0f / *input.scale, output_inverse = kAgain ? 1.0f / *output.scale : 0;
  const std::int64_t hidden = dy.columns;
  TileBytes<__NV_E5M2> dgate, dup;
  TileBytes<__NV_E4M3> y;
  const auto round_row = [&](int r, const Vec<Act, kThreadColumns>(&loaded)[3], bool inside) {
    Vec<float, kThreadColumns> gate = widen(loaded[0]), g = widen(loaded[2]), products;
    const Vec<float, kThreadColumns> up = widen(loaded[1]);
#pragma unroll
    for (int c = 0; c < kThreadColumns; ++c) {
      const GatePoint point = gate_point<Act, kKind>(gate.v[c]);
      gate.v[c] = g.v[c] * up.v[c] * point.slope;
      g.v[c] = g.v[c] * point.value;
      products.v[c] = point.value * up.v[c];
    }
    const std::int64_t row = at.row + r;
    round_to<Act>(gate);
    round_to<Act>(g);
    dgate.round(r, gate, inverse, input, inside, row);
    dup.round(r, g, inverse, input, inside, row);
    if constexpr (!kAgain) return;
    round_to<Act>(products);
    y.round(r, products, output_inverse, output, inside, row);
  };
  for_tile(at, count, hidden, wide, [&](auto full) {
    constexpr bool kFull = decltype(full)::value;
#pragma unroll
    for (int first = 0; first < kThreadRows; first += kRowsAtOnce) {
      Vec<Act, kThreadColumns> loaded[kRowsAtOnce][3] = {};  // gate, up, dy
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        const std::int64_t row = at.row + first + i;
        if (!kFull && row >= count) continue;
        loaded[i][0] = part_of_row<kFull>(gate_up.row(row), at.column, hidden);
        loaded[i][1] = part_of_row<kFull>(gate_up.row(row) + hidden, at.column, hidden);
        loaded[i][2] = part_of_row<kFull>(dy.row(row), at.column, hidden);
      }
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        round_row(first + i, loaded[i], kFull || at.row + first + i < count);
      }
    }
  });
  write(input, at, 0, hidden, dgate, memory);
  __syncthreads();
  write(input, at, hidden, hidden, dup, memory);
  if constexpr (!kAgain) return;
  __syncthreads();
  write(output, at, 0, hidden, y, memory);
}

}  // namespace

void gated_forward_fp8(const CudaNative& native, const GatedForward& args) {
  dispatch_device_float(args.gate_up.dtype(), [&](auto tag) {
    dispatch_gate(args.kind, [&](auto kind) {
      using Act = decltype(tag);
      const auto gate_up = rows2<Act>(args.gate_up);
      const std::int64_t hidden = gate_up.columns / 2;
      const GatedRows<Act, decltype(kind)::value> rows{{gate_up.data, gate_up.count, gate_up.columns, gate_up.stride},
                                                       hidden,
                                                       aligned<2 * kThreadColumns>({args.gate_up})};
      quantize_tiles<__NV_E4M3>(native, rows, gate_up.count, hidden, args.fp8);
    });
  });
}

void gated_backward_fp8(const CudaNative& native, const GatedBackward& args) {
  const std::int64_t rows = args.dy.size(0), hidden = args.dy.size(1);
  const dim3 tiles = tiles_of(rows, hidden);
  if (tiles.x == 0 || tiles.y == 0) return;
  const bool wide = aligned<2 * kThreadColumns>({args.gate_up}) && aligned<kThreadColumns>({args.dy});
  const bool again = !args.y_fp8.empty();
  const Fp8Target input = fp8_target(args.dgate_up_fp8, rows, 2 * hidden);
  const Fp8Target output = again ? fp8_target(args.y_fp8, rows, hidden) : Fp8Target();
  dispatch_device_float(args.dy.dtype(), [&](auto tag) {
    using Act = decltype(tag);
    const auto gate_up = rows2<Act>(args.gate_up), dy = rows2<Act>(args.dy);
    const auto launch = [&](auto kernel) {
      kernel<<<tiles, kTileThreads, 0, stream_of(native)>>>(
          {gate_up.data, gate_up.count, gate_up.columns, gate_up.stride}, {dy.data, dy.count, dy.columns, dy.stride},
          wide, input, output);
    };
    dispatch_gate(args.kind, [&](auto kind) {
      constexpr Gate kKind = decltype(kind)::value;
      launch(again ? backward_kernel<Act, kKind, true> : backward_kernel<Act, kKind, false>);
    });
  });
}

}  // namespace hawser::ops::cuda
