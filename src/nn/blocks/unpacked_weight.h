// `unpacked_weight`: a weight that a GEMM can read. Internal to Linear and ExpertGemms.
#pragma once

#include "nn/layer.h"
#include "ops/quantize/quantize_nf4.h"

namespace hawser::nn {

// The matrix, or several [E, rows, columns], in `dtype`: of DType::nf4 a temporary with its values, otherwise the view
// as it is. Each GEMM dequantizes again: the unpacked weights of a layer never exist together.
inline TensorView unpacked_weight(LayerContext& ctx, const TensorView& weight, DType dtype) {
  if (weight.dtype() != DType::nf4) return weight;
  Shape shape = weight.shape();
  shape[shape.rank() - 1] *= kNf4Block;
  const TensorView values = ctx.temp(dtype, shape);
  ops::dequantize_nf4(ctx.compute(), {.q = weight, .y = values});
  return values;
}

}  // namespace hawser::nn
