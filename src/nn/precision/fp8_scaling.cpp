#include "nn/precision/fp8_scaling.h"

#include "nn/flat.h"
#include "nn/layer.h"
#include "ops/quantize/matrices.h"
#include "ops/quantize/saturation.h"

namespace hawser::nn {

namespace {

DType dtype_of(Operand operand) {
  return operand == Operand::x ? DType::f8e4m3 : DType::f8e5m2;
}

// Which rows of a matrix count; all of those that row_count has.
TensorView mask_of(LayerContext& ctx, const Quantization& how, std::int64_t rows) {
  return how.row_count.empty() ? ctx.batch().token_mask.rows(how.first_row, rows) : TensorView();
}

}  // namespace

ops::Fp8Output Fp8Scaling::make_output(LayerContext& ctx, const Quantization& how, const Shape& shape,
                                       const TensorView& scale) const {
  const DType dtype = dtype_of(how.operand);
  const auto given_or_temp = [&](const TensorView& view, DType of, const Shape& like) {
    return view.empty() ? ctx.temp(of, like) : view;
  };
  ops::Fp8Output out{.scale = scale,
                     .mask = mask_of(ctx, how, shape[0]),
                     .amax = how.amax,
                     .saturated = how.saturated,
                     .row_count = how.row_count};
  if (!how.saturated.empty()) *how.elements += how.row_count.empty() ? shape.elements() : how.expected_rows * shape[1];
  if (how.rows) out.q = ctx.temp(dtype, shape);
  if (how.transposed) out.transposed = given_or_temp(how.transposed_to, dtype, {shape[1], shape[0]});
  out.used = given_or_temp(how.used_to, DType::f32, {1});
  return out;
}

std::optional<ops::Fp8Output> Fp8Scaling::output(LayerContext& ctx, const Quantization& how, const Shape& shape) const {
  if (how.scale.empty()) return {};
  return make_output(ctx, how, shape, how.scale);
}

Scaled Fp8Scaling::quantize(LayerContext& ctx, const Quantization& how, const TensorView& matrix) const {
  HAWSER_CHECK(how.format == LinearFormat::fp8_delayed || how.format == LinearFormat::fp8_current,
               "a format of another quantizer");
  TensorView scale = how.scale;
  if (scale.empty()) {
    const TensorView amax = ctx.temp(DType::f32, {1});
    scale = ctx.temp(DType::f32, {1});
    ops::amax(ctx.compute(),
              {.x = matrix, .mask = mask_of(ctx, how, matrix.size(0)), .out = amax, .row_count = how.row_count});
    ops::scales_of_amaxes(
        ctx.compute(),
        {.amax = amax, .scales = scale, .dtype = dtype_of(how.operand), .rule = rule(), .otherwise = 1.0f});
  }
  const ops::Fp8Output out = make_output(ctx, how, matrix.shape(), scale);
  ops::quantize(ctx.compute(), {.x = matrix,
                                .scale = out.scale,
                                .q = out.q,
                                .transposed = out.transposed,
                                .used = out.used,
                                .mask = out.mask,
                                .amax = out.amax,
                                .saturated = out.saturated,
                                .row_count = out.row_count});
  return {out.q, out.used, out.transposed};
}

void Fp8Scaling::record(LayerContext& ctx, const Quantization& how, const TensorView& matrix) const {
  ops::amax(ctx.compute(), {.x = matrix,
                            .mask = mask_of(ctx, how, matrix.size(0)),
                            .out = how.amax,
                            .row_count = how.row_count,
                            .accumulate = true});
}

void Fp8Scaling::judge(Stream& stream, const JudgedStep& s) const {
  ops::judge_saturation(stream, {.saturated = s.saturated,
                                 .elements = s.elements,
                                 .step = s.step,
                                 .worst = s.worst,
                                 .worst_site = s.worst_site,
                                 .replay_step = s.replay_step,
                                 .replays = s.replays,
                                 .skip = s.skip,
                                 .limit = options_.saturation_limit,
                                 .max_replays = options_.max_replays,
                                 .saturates = s.saturates,
                                 .waits = s.waits,
                                 .refused = s.refused});
}

void Fp8Scaling::update_scales(Stream& stream, const SiteScales& s) const {
  ops::delayed_scales(stream, {.amax = s.amax,
                               .history = s.history,
                               .scales = s.scales,
                               .skip = s.skip,
                               .most_recent = options_.most_recent,
                               .rule = rule(),
                               .refreshes = s.refreshes});
}

std::vector<ops::EqualMatrices> Fp8Scaling::measured_matrices(const Flat& flat, std::int64_t begin) const {
  HAWSER_CHECK(flat.spec().scaled, flat.name(), ": FP8 weights have one scale each");
  std::vector<ops::EqualMatrices> matrices;
  for (int p = 0; p < static_cast<int>(flat.params().size()); ++p) {
    const Param& param = flat.params()[static_cast<std::size_t>(p)];
    if (param.elements() == 0) continue;
    matrices.push_back({.begin = flat.offset(p) - begin,
                        .size = param.elements() / param.gemm_matrices(),
                        .count = param.gemm_matrices(),
                        .first = flat.scale_offset(p)});
  }
  return matrices;
}

void Fp8Scaling::measure(Stream& stream, const FlatValues& piece, const TensorView& amax) const {
  ops::amax_of_matrices(stream,
                        {.x = piece.values, .amax = amax, .matrices = measured_matrices(piece.flat, piece.begin)});
}

void Fp8Scaling::weight_scales(Stream& stream, const Flat&, const TensorView& amax, const TensorView& scales) const {
  ops::scales_of_amaxes(stream, {.amax = amax, .scales = scales, .dtype = DType::f8e4m3, .rule = rule()});
}

void Fp8Scaling::quantize_weights(Stream& stream, const FlatValues& piece, const TensorView& scales,
                                  const TensorView& q) const {
  // Elements between parameters are zeros, as those of every flat.
  ops::quantize_matrices(
      stream, {.x = piece.values, .scales = scales, .q = q, .matrices = measured_matrices(piece.flat, piece.begin)});
}

}  // namespace hawser::nn
