#include "nn/precision/fp8_scaling.h"

#include <algorithm>

#include "nn/flat.h"
#include "nn/layer.h"
#include "ops/copy/copy.h"
#include "ops/quantize/saturation.h"

namespace hawser::nn {

namespace {

DType dtype_of(Operand operand) {
  return operand == Operand::x ? DType::f8e4m3 : DType::f8e5m2;
}

// Calls body(index of the scale, first element in the piece, count) for each part of a parameter (Param::parts) that has
// elements in the piece.
template <class Body>
void each_part(const FlatPiece& piece, const Body& body) {
  HAWSER_CHECK(piece.flat.spec().scaling == Scaling::tensor, piece.flat.name(), ": FP8 weights have one scale each");
  const std::int64_t end = piece.begin + piece.values.elements();
  for (int p = 0; p < static_cast<int>(piece.flat.params().size()); ++p) {
    const Param& param = piece.flat.params()[static_cast<std::size_t>(p)];
    const std::int64_t size = param.elements() / param.parts();
    for (std::int64_t part = 0; part < param.parts(); ++part) {
      const std::int64_t offset = piece.flat.offset(p) + part * size;
      const std::int64_t first = std::max(offset, piece.begin), last = std::min(offset + size, end);
      if (first < last) body(piece.flat.scale_offset(p) + part, first - piece.begin, last - first);
    }
  }
}

// Which rows of a matrix count; all of those that row_count has.
TensorView mask_of(LayerContext& ctx, const Quantization& how, std::int64_t rows) {
  return how.row_count.empty() ? ctx.batch().token_mask.rows(how.first_row, rows) : TensorView();
}

// Elements as a matrix. Its form does not change what is computed; a GPU is fast with many rows.
TensorView matrix(const TensorView& elements) {
  constexpr std::int64_t kColumns = 64;
  const std::int64_t count = elements.elements();
  return elements.reshape(count % kColumns == 0 ? Shape{count / kColumns, kColumns} : Shape{1, count});
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
               "scales of blocks are not supported yet");
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
                                 .waits = s.waits});
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

void Fp8Scaling::measure(Stream& stream, const FlatPiece& piece, const TensorView& amax) const {
  ops::fill(stream, {.y = amax, .value = 0});
  each_part(piece, [&](std::int64_t scale, std::int64_t first, std::int64_t count) {
    ops::amax(stream, {.x = piece.values.rows(first, count), .out = amax.rows(scale, 1), .accumulate = true});
  });
}

void Fp8Scaling::weight_scales(Stream& stream, const Flat&, const TensorView& amax, const TensorView& scales) const {
  ops::scales_of_amaxes(stream, {.amax = amax, .scales = scales, .dtype = DType::f8e4m3, .rule = rule()});
}

void Fp8Scaling::quantize_weights(Stream& stream, const FlatPiece& piece, const TensorView& scales,
                                  const TensorView& q) const {
  // Elements between parameters are zeros, as those of every flat.
  std::int64_t at = 0;
  const auto zeros_up_to = [&](std::int64_t end) {
    if (at < end) ops::fill(stream, {.y = q.rows(at, end - at), .value = 0});
  };
  each_part(piece, [&](std::int64_t scale, std::int64_t first, std::int64_t count) {
    zeros_up_to(first);
    ops::quantize(stream, {.x = matrix(piece.values.rows(first, count)),
                           .scale = scales.rows(scale, 1),
                           .q = matrix(q.rows(first, count))});
    at = first + count;
  });
  zeros_up_to(q.elements());
}

}  // namespace hawser::nn
