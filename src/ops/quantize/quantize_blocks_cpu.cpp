#include <algorithm>
#include <array>

#include "ops/quantize/block_scale.h"
#include "ops/quantize/quantize_blocks.h"
#include "ops/quantize/quantize_rows_cpu.h"

namespace hawser::ops::cpu {

namespace {

using Sizes = std::array<std::uint32_t, kScaleBlock>;  // bits of the maxima of a tile's rows or columns
using Factors = std::array<float, kScaleBlock>;

// A tile of up to 128 x 128 elements of x.
struct BlockTile {
  std::int64_t row, column, rows, columns;
};

// Scales of a matrix [rows, columns], and its codes.
template <class Q>
struct BlockTarget {
  Q* q;
  float* scales;
  ScaleKind kind;
  std::int64_t rows, columns;

  bool wanted() const { return q != nullptr; }
  // Writes the scale of the block at (row, column) and returns its inverse.
  float write_scale(std::int64_t row, std::int64_t column, float scale) const {
    scales[scale_index(kind, rows, columns, row, column)] = scale;
    return 1.0f / scale;
  }
};

template <class Q>
BlockTarget<Q> block_target(const TensorView& q, const TensorView& scales, ScaleKind kind) {
  if (q.empty()) return {nullptr, nullptr, kind, 0, 0};
  std::fill_n(scales.data<float>(), scales.elements(), 0.0f);
  return {q.data<Q>(), scales.data<float>(), kind, q.size(0), q.size(1)};
}

// The inverse scales of a tile, for each line (row of the target's matrix); `first`: the tile's first line and column
// there.
template <class Q>
Factors inverses_of(const BlockTarget<Q>& to, const Sizes& amax, std::int64_t first_line, std::int64_t first_column,
                    std::int64_t lines, const BlockScale& of) {
  Factors out{};
  if (to.kind == ScaleKind::block128) {
    const std::uint32_t largest = *std::max_element(amax.begin(), amax.begin() + lines);
    out.fill(to.write_scale(first_line, first_column, of(largest)));
    return out;
  }
  for (std::int64_t i = 0; i < lines; ++i) {
    out[static_cast<std::size_t>(i)] =
        to.write_scale(first_line + i, first_column, of(amax[static_cast<std::size_t>(i)]));
  }
  return out;
}

template <class X, class Q>
void quantize_tile(const RowsOf<X>& x, const QuantizeBlocks& args, const BlockTile& tile, const BlockTarget<Q>& q,
                   const BlockTarget<Q>& transposed, const BlockScale& of) {
  Sizes of_rows{}, of_columns{};
  for (std::int64_t r = 0; r < tile.rows; ++r) {
    if (!counts(args.mask, tile.row + r)) continue;
    const X* const from = x.row(tile.row + r) + tile.column;
    for (std::int64_t c = 0; c < tile.columns; ++c) {
      const std::uint32_t size = size_bits(static_cast<float>(from[c]));
      std::uint32_t& row = of_rows[static_cast<std::size_t>(r)];
      std::uint32_t& column = of_columns[static_cast<std::size_t>(c)];
      row = std::max(row, size);
      column = std::max(column, size);
    }
  }
  if (q.wanted()) {
    const Factors inverse = inverses_of(q, of_rows, tile.row, tile.column, tile.rows, of);
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      const X* const from = x.row(tile.row + r) + tile.column;
      Q* const to = q.q + (tile.row + r) * q.columns + tile.column;
      for (std::int64_t c = 0; c < tile.columns; ++c) {
        to[c] = Q(static_cast<float>(from[c]) * inverse[static_cast<std::size_t>(r)]);
      }
    }
  }
  if (!transposed.wanted()) return;
  const Factors inverse = inverses_of(transposed, of_columns, tile.column, tile.row, tile.columns, of);
  for (std::int64_t c = 0; c < tile.columns; ++c) {
    Q* const to = transposed.q + (tile.column + c) * transposed.columns + tile.row;
    for (std::int64_t r = 0; r < tile.rows; ++r) {
      to[r] = Q(static_cast<float>(x.row(tile.row + r)[tile.column + c]) * inverse[static_cast<std::size_t>(c)]);
    }
  }
}

}  // namespace

void quantize_blocks(const QuantizeBlocks& args) {
  const BlockScale of{scale_of(args.dtype(), args.rule)};
  dispatch_float(args.x.dtype(), [&](auto x_tag) {
    using X = decltype(x_tag);
    const auto x = rows_of<X>(args.x);
    dispatch_fp8(args.dtype(), [&](auto q_tag) {
      using Q = decltype(q_tag);
      const auto q = block_target<Q>(args.q, args.scales, args.kind);
      const auto transposed = block_target<Q>(args.transposed, args.transposed_scales, args.kind);
      const std::int64_t across = ceil_div(x.columns, kScaleBlock), down = ceil_div(x.count, kScaleBlock);
      parallel_items(down * across, [&](std::int64_t item) {
        const std::int64_t row = item / across * kScaleBlock, column = item % across * kScaleBlock;
        quantize_tile(x, args,
                      {row, column, std::min(kScaleBlock, x.count - row), std::min(kScaleBlock, x.columns - column)}, q,
                      transposed, of);
      });
    });
  });
}

}  // namespace hawser::ops::cpu
