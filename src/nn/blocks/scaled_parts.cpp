#include "nn/blocks/scaled_parts.h"

#include "ops/copy/copy.h"

namespace hawser::nn {

namespace {

// The 1x128 scales of rows [first, first + rows): columns of those of all rows, which GEMMs read dense.
TensorView scales_of_rows(LayerContext& ctx, const TensorView& scales, std::int64_t first, std::int64_t rows) {
  const std::int64_t padded = round_up(rows, ops::kScaleRow);
  const TensorView own = ctx.temp(DType::f32, {scales.size(0), padded});
  if (padded > rows) ops::fill(ctx.compute(), {.y = own});
  ops::copy(ctx.compute(), {.x = scales.columns(first, rows), .y = own.columns(0, rows)});
  return own;
}

}  // namespace

Scaled rows_of(LayerContext& ctx, const Scaled& matrix, std::int64_t first, std::int64_t rows) {
  if (matrix.view.empty() || (first == 0 && rows == matrix.view.size(0))) return matrix;
  HAWSER_CHECK(matrix.kind != ops::ScaleKind::block128, "rows of a matrix with 128x128 scales");
  if (matrix.kind == ops::ScaleKind::one) return {matrix.view.rows(first, rows), matrix.scale};
  Scaled part(matrix.view.rows(first, rows), scales_of_rows(ctx, matrix.scale, first, rows));
  part.kind = matrix.kind;
  return part;
}

Scaled columns_of(LayerContext& ctx, const Scaled& matrix, std::int64_t first, std::int64_t columns) {
  const bool all = matrix.view.empty() ? columns == matrix.transposed.size(0) : columns == matrix.view.size(1);
  if (all) return matrix;
  HAWSER_CHECK(matrix.kind != ops::ScaleKind::block128, "columns of a matrix with 128x128 scales");
  const bool blocks = matrix.kind == ops::ScaleKind::vec128;
  Scaled part = matrix;
  if (!matrix.view.empty()) {
    part.view = matrix.view.columns(first, columns);
    if (blocks) {
      HAWSER_CHECK(first % ops::kScaleBlock == 0, "columns from ", first,
                   " on of a matrix with 1x128 scales, in which no block begins there");
      part.scale = matrix.scale.rows(first / ops::kScaleBlock, ceil_div(columns, ops::kScaleBlock));
    }
  }
  if (!matrix.transposed.empty()) {
    part.transposed = matrix.transposed.rows(first, columns);
    if (blocks) part.transposed_scale = scales_of_rows(ctx, matrix.transposed_scale, first, columns);
  }
  return part;
}

}  // namespace hawser::nn
