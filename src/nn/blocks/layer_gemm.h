// `layer_gemm`: a GEMM of a layer. Linear, experts and the loss over a sliced vocabulary call it.
#pragma once

#include "nn/layer.h"
#include "ops/copy/add.h"
#include "ops/copy/copy.h"
#include "ops/gemm/gemm.h"
#include "ops/quantize/quantize.h"

namespace hawser::nn {

// One GEMM with its workspace from the context. GPUs have no GEMM of float32 operands with a bf16 result (the gradient
// of a router's weight): a float32 temporary receives its sums, which are then rounded or added, with the same bits.
// Nor do they multiply FP8 by another dtype: its values are written to a temporary in that dtype.
inline void layer_gemm(LayerContext& ctx, ops::Gemm gemm) {
  const auto dequantize = [&](TensorView& matrix, TensorView& scale, ops::ScaleKind kind, const TensorView& other) {
    if (!is_fp8(matrix.dtype()) || is_fp8(other.dtype()) || ctx.compute().target() != DeviceKind::cuda) return;
    HAWSER_CHECK(kind == ops::ScaleKind::one, "a matrix with ", to_string(kind), " times ", to_string(other.dtype()));
    const TensorView values = ctx.temp(other.dtype(), matrix.shape());
    ops::dequantize(ctx.compute(), {.q = matrix, .scale = scale, .y = values});
    matrix = values;
    scale = {};
  };
  dequantize(gemm.a, gemm.scale_a, gemm.scaling_a, gemm.b);
  dequantize(gemm.b, gemm.scale_b, gemm.scaling_b, gemm.a);
  const TensorView c = gemm.c;
  const bool widened =
      gemm.a.dtype() == DType::f32 && gemm.b.dtype() == DType::f32 && c.dtype() == DType::bf16 && gemm.bias.empty();
  const bool adds = widened && gemm.accumulate;
  if (widened) {
    gemm.c = ctx.temp(DType::f32, c.shape());
    gemm.accumulate = false;
  }
  gemm.workspace = ctx.workspace(ops::gemm_workspace(gemm, ctx.compute().target()));
  ops::gemm(ctx.compute(), gemm);
  if (adds) {
    ops::add(ctx.compute(), {.a = gemm.c, .b = c, .y = c});
  } else if (widened) {
    ops::cast(ctx.compute(), {.x = gemm.c, .y = c});
  }
}

}  // namespace hawser::nn
