#include "nn/blocks/linear_input.h"

namespace hawser::nn {

namespace {

// What `reader` reads, and what is saved.
Quantization forms(LayerContext& ctx, const Linear& linear, Operand operand, Linear::ReadBy reader,
                   const SavedInput& saved) {
  Quantization how = reading(ctx.quantization(linear.site, operand), reader);
  how.first_row = linear.begin(ctx.rows());
  if (saved.in_fp8()) {
    how.transposed = true;
    how.transposed_to = saved.matrix;
    how.used_to = saved.scale;
  }
  return how;
}

}  // namespace

bool saves_fp8(const SavePolicy& policy, const Linear& linear, const RowCounts& rows) {
  return policy.fp8_inputs && policy.format(linear.site) != LinearFormat::compute && linear.adapters.empty() &&
         linear.rows(rows) == rows.residual;
}

TensorSpec fp8_spec(const TensorSpec& matrix) {
  return {matrix.name, DType::f8e4m3, {matrix.shape[1], matrix.shape[0]}};
}

SavedSpec scale_spec(const char* name, const SavedSpec& matrix, LinearFormat format) {
  const bool in_fp8 = matrix.shape.rank() > 0 && matrix.dtype == DType::f8e4m3;
  if (!in_fp8) return {name, DType::f32, Shape(), matrix.writer, matrix.last_reader};
  const auto kind = format == LinearFormat::fp8_block ? ops::ScaleKind::vec128 : ops::ScaleKind::one;
  return {name, DType::f32, ops::scale_shape(kind, matrix.shape[0], matrix.shape[1]), matrix.writer,
          matrix.last_reader};
}

Scaled SavedInput::read() const {
  if (!in_fp8()) return matrix;
  if (scale.rank() == 1) return {{}, scale, matrix};
  Scaled out({}, {}, matrix, scale);
  out.kind = ops::ScaleKind::vec128;
  return out;
}

std::optional<ops::Fp8Output> fp8_output(LayerContext& ctx, const Linear& linear, Operand operand, const Shape& shape,
                                         Linear::ReadBy reader, const SavedInput& saved) {
  const Quantization how = ctx.quantization(linear.site, operand);
  const bool bias = operand == Operand::dy && (linear.bias >= 0 || linear.more_bias >= 0);
  const bool in_dtype = !saved.matrix.empty() && !saved.in_fp8();
  if (how.format == LinearFormat::compute || how.records_only || !linear.adapters.empty() || bias || in_dtype ||
      shape[0] != linear.rows(ctx.rows())) {
    return {};
  }
  return how.quantizer->output(ctx, forms(ctx, linear, operand, reader, saved), shape);
}

Scaled write_input(LayerContext& ctx, const Linear& linear, const Shape& shape, const SavedInput& saved,
                   Linear::ReadBy reader, const InputWriter& writer) {
  if (writer.writes_fp8) {
    if (const auto output = fp8_output(ctx, linear, Operand::x, shape, reader, saved)) {
      writer.write({}, *output);
      return scaled_of(*output);
    }
  }
  TensorView y = saved.in_fp8() || saved.matrix.empty() ? saved.unsaved : saved.matrix;
  if (y.empty()) y = ctx.temp(ctx.dtype(), shape);
  writer.write(y, {});
  if (!saved.in_fp8()) return y;  // the Linear rounds it
  Quantization how = forms(ctx, linear, Operand::x, reader, saved);
  if (!how.records_only) return how.quantizer->quantize(ctx, how, y);
  // The product reads y itself. There is no scale yet, and no one keeps the gradient of the weight.
  how.records_only = how.rows = false;
  how.scale = how.amax = how.saturated = {};
  how.quantizer->quantize(ctx, how, y);
  return y;
}

}  // namespace hawser::nn
