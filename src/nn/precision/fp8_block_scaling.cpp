#include "nn/precision/fp8_block_scaling.h"

#include "nn/flat.h"
#include "nn/layer.h"

namespace hawser::nn {

namespace {

// What both forms of a matrix are written to: temporaries, or given views.
Scaled make_forms(LayerContext& ctx, ops::ScaleKind kind, const Shape& shape, const Quantization& how) {
  const auto given_or_temp = [&](const TensorView& view, DType dtype, const Shape& of) {
    return view.empty() ? ctx.temp(dtype, of) : view;
  };
  Scaled out;
  out.kind = kind;
  if (how.rows) {
    out.view = ctx.temp(DType::f8e4m3, shape);
    out.scale = ctx.temp(DType::f32, ops::scale_shape(kind, shape[0], shape[1]));
  }
  if (how.transposed) {
    out.transposed = given_or_temp(how.transposed_to, DType::f8e4m3, {shape[1], shape[0]});
    out.transposed_scale = given_or_temp(how.used_to, DType::f32, ops::scale_shape(kind, shape[1], shape[0]));
  }
  return out;
}

void no_scales(const std::string& flat) {
  HAWSER_CHECK(false, flat, ": with scales of blocks, weights are quantized where a GEMM reads them");
}

}  // namespace

Scaled Fp8BlockScaling::quantize(LayerContext& ctx, const Quantization& how, const TensorView& matrix) const {
  HAWSER_CHECK(how.format == LinearFormat::fp8_block && how.row_count.empty(),
               "scales of blocks of an operand of experts, or of another format");
  const Scaled out = make_forms(ctx, ops::ScaleKind::vec128, matrix.shape(), how);
  const TensorView& mask = ctx.batch().token_mask;
  ops::quantize_blocks(ctx.compute(), {.x = matrix,
                                       .kind = out.kind,
                                       .q = out.view,
                                       .scales = out.scale,
                                       .transposed = out.transposed,
                                       .transposed_scales = out.transposed_scale,
                                       .mask = mask.empty() ? mask : mask.rows(how.first_row, matrix.size(0)),
                                       .rule = rule()});
  return out;
}

Scaled Fp8BlockScaling::quantize_weight(LayerContext& ctx, const Scaled& weight, bool transposed) const {
  HAWSER_CHECK(weight.scale.empty(), "scales of blocks of a weight that has scales");
  const Scaled out = make_forms(ctx, ops::ScaleKind::block128, weight.view.shape(),
                                {.rows = !transposed, .transposed = transposed, .scale = {}, .amax = {}});
  ops::quantize_blocks(ctx.compute(), {.x = weight.view,
                                       .kind = out.kind,
                                       .q = out.view,
                                       .scales = out.scale,
                                       .transposed = out.transposed,
                                       .transposed_scales = out.transposed_scale,
                                       .rule = rule()});
  return out;
}

void Fp8BlockScaling::update_scales(Stream&, const SiteScales&) const {
  HAWSER_CHECK(false, "scales of blocks have no history");
}

void Fp8BlockScaling::measure(Stream&, const FlatValues& piece, const TensorView&) const {
  no_scales(piece.flat.name());
}

void Fp8BlockScaling::weight_scales(Stream&, const Flat& flat, const TensorView&, const TensorView&) const {
  no_scales(flat.name());
}

void Fp8BlockScaling::quantize_weights(Stream&, const FlatValues& piece, const TensorView&, const TensorView&) const {
  no_scales(piece.flat.name());
}

}  // namespace hawser::nn
