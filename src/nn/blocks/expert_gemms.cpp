#include "nn/blocks/expert_gemms.h"

#include "nn/blocks/unpacked_weight.h"
#include "ops/copy/transpose.h"
#include "ops/gemm/grouped_gemm.h"
#include "ops/quantize/quantize.h"
#include "tensor/fp8.h"

namespace hawser::nn {

namespace {

template <class Args, class Op>
void grouped(LayerContext& ctx, Args args, Op op) {
  args.workspace = ctx.workspace(ops::grouped_gemm_workspace(args, ctx.compute().target()));
  op(ctx.compute(), args);
}

}  // namespace

Quantization ExpertGemms::quantization(int piece, Site site, Operand operand, Linear::ReadBy reader) const {
  Quantization how = reading(ctx_.quantization(site, operand), reader);
  const TokenExchange::Sizes& sizes = routing_.sizes;
  how.row_count = routing_.piece_offsets(piece).rows(sizes.piece_experts(), 1);
  how.expected_rows = sizes.tokens * sizes.per_token / sizes.options.pieces;
  return how;
}

Scaled ExpertGemms::quantized(int piece, Site site, Operand operand, const TensorView& rows,
                              Linear::ReadBy reader) const {
  const Quantization how = quantization(piece, site, operand, reader);
  if (how.format == LinearFormat::compute) return rows;
  if (!how.records_only) return how.quantizer->quantize(ctx_, how, rows);
  if (!how.amax.empty()) how.quantizer->record(ctx_, how, rows);
  return rows;
}

Scaled ExpertGemms::sent(Site site, Operand operand, const TensorView& tokens, Linear::ReadBy reader) const {
  Quantization how = ctx_.quantization(site, operand);
  const bool in_fp8 = how.format != LinearFormat::compute && !how.records_only && !how.scale.empty();
  if (!in_fp8 || !routing_.sizes.options.quantized_rows) return tokens;
  how.rows = true, how.transposed = false;
  how.first_row = ctx_.rows().first;
  if (reader == Linear::ReadBy::weight_gradient) how.amax = how.saturated = {};
  return how.quantizer->quantize(ctx_, how, tokens);
}

Scaled ExpertGemms::arrived(int piece, Site site, Operand operand, const Scaled& sent, const TensorView& rows,
                            Linear::ReadBy reader) const {
  if (!sent.scaled()) return quantized(piece, site, operand, rows, reader);
  if (reader == Linear::ReadBy::product) return {rows, sent.scale};
  const TensorView transposed = ctx_.temp(rows.dtype(), {rows.size(1), rows.size(0)});
  ops::transpose(ctx_.compute(), {.x = rows, .y = transposed});
  return {reader == Linear::ReadBy::both ? rows : TensorView(), sent.scale, transposed};
}

std::optional<ops::Fp8Output> ExpertGemms::output(int piece, Site site, Operand operand, const Shape& rows,
                                                  Linear::ReadBy reader) const {
  const Quantization how = quantization(piece, site, operand, reader);
  if (how.format == LinearFormat::compute || how.records_only) return {};
  return how.quantizer->output(ctx_, how, rows);
}

Scaled ExpertGemms::weights(int piece, const TensorView& matrices, const Scaled& parameter, DType rows) const {
  const std::int64_t count = routing_.sizes.piece_experts();
  const TensorView own = matrices.rows(piece * count, count);
  if (parameter.scale.empty()) {
    return unpacked_weight(ctx_, own, parameter.nf4, rows, piece * count * matrices.size(1));
  }
  const TensorView own_scales = parameter.scale.rows(piece * count, count);
  if (is_fp8(rows)) return {own, own_scales};
  // The rows are not quantized in this pass.
  const TensorView values = ctx_.temp(rows, own.shape());
  ops::dequantize(ctx_.compute(), {.q = own, .scale = own_scales, .y = values});
  return values;
}

void ExpertGemms::multiply(int piece, int param, const Scaled& x, const TensorView& y, bool backward) const {
  const Scaled& parameter = ctx_.parameter(param);
  const bool transposed = backward && !parameter.transposed.empty();
  const TensorView matrices =
      by_expert(transposed ? parameter.transposed : parameter.view, routing_.sizes.local_experts);
  const Scaled b = weights(piece, matrices, parameter, x.view.dtype());
  grouped(ctx_,
          ops::GroupedGemm{.a = x.view,
                           .b = b.view,
                           .c = y,
                           .offsets = routing_.piece_offsets(piece),
                           .transpose_b = transposed || !backward,
                           .flops = flops(b.view.size(1) * b.view.size(2)),
                           .scale_a = x.scale,
                           .scale_b = b.scale},
          ops::grouped_gemm);
}

void ExpertGemms::weight_gradient(int piece, const Scaled& dy, const Scaled& x, const TensorView& gradient,
                                  bool accumulate) const {
  const std::int64_t count = routing_.sizes.piece_experts();
  const bool transposed = !dy.transposed.empty();
  HAWSER_CHECK(transposed == !x.transposed.empty(), "experts: only one operand is quantized");
  grouped(ctx_,
          ops::GroupedWeightGradient{.a = transposed ? dy.transposed : dy.view,
                                     .b = transposed ? x.transposed : x.view,
                                     .c = gradient.rows(piece * count, count),
                                     .offsets = routing_.piece_offsets(piece),
                                     .accumulate = accumulate,
                                     .flops = flops(gradient.size(1) * gradient.size(2)),
                                     .scale_a = dy.scale,
                                     .scale_b = x.scale},
          ops::grouped_weight_gradient);
}

double ExpertGemms::flops(std::int64_t elements) const {
  const TokenExchange::Sizes& sizes = routing_.sizes;
  return 2.0 * static_cast<double>(sizes.tokens * sizes.per_token * elements) / sizes.options.pieces;
}

}  // namespace hawser::nn
