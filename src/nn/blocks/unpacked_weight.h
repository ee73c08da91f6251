// `unpacked_weight`: a weight that a GEMM can read. Internal to Linear and ExpertGemms.
#pragma once

#include "nn/layer.h"
#include "ops/quantize/quantize_nf4.h"

namespace hawser::nn {

// The matrix, or several [E, rows, columns], in `dtype`: of NF4 a temporary with its values, otherwise the view as it
// is. Each GEMM dequantizes again: the unpacked weights of a layer never exist together. `first_row`: of the view, among
// the rows that `nf4` has scales of.
inline TensorView unpacked_weight(LayerContext& ctx, const TensorView& weight, const Nf4Matrix& nf4, DType dtype,
                                  std::int64_t first_row = 0) {
  if (!is_nf4(weight.dtype())) return weight;
  Shape shape = weight.shape();
  std::int64_t& columns = shape[shape.rank() - 1];
  const std::int64_t blocks = columns, rows = shape.elements() / blocks;
  columns = nf4.columns ? nf4.columns->count : blocks * kNf4Block;
  const TensorView values = ctx.temp(dtype, shape);
  ops::Nf4Scales scales = nf4.scales;
  if (!scales.row_places.empty()) scales.row_places = scales.row_places.rows(first_row, rows);
  ops::dequantize_nf4(ctx.compute(), {.q = weight.reshape({rows, blocks}),
                                      .y = values.reshape({rows, columns}),
                                      .scales = scales,
                                      .first_column = nf4.columns ? nf4.columns->begin : 0});
  return values;
}

}  // namespace hawser::nn
