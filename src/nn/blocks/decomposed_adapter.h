// `DecomposedAdapter`: the ops of an adapter with a magnitude (DoRA) in one call of its Linear. Internal to Linear.
// Formulas: Adapter, in nn/blocks/linear.h.
#pragma once

#include "nn/blocks/low_rank_adapters.h"
#include "ops/dora/dora.h"

namespace hawser::nn {

class DecomposedAdapter {
 public:
  // `first_row`: as LowRankAdapters's.
  DecomposedAdapter(LayerContext& ctx, const Linear& linear, std::size_t index, std::int64_t first_row = 0)
      : ctx_(ctx), linear_(linear), adapter_(linear.adapters[index]), product_(ctx, linear, {index}, first_row, true) {}

  // y, which has x W^T alone, becomes f * (y + scale * x A^T B^T).
  void multiply_forward(const Scaled& x, const TensorView& y) const {
    product_.add_term(0, product_.inner(x), outputs(y), true);
    times_f(outputs(y), outputs(y));
  }

  // y += f * (u + v) - u,  u = dropout(x) W^T, v = scale * dropout(x) A^T B^T
  void add_forward(const Scaled& x, const TensorView& y) const {
    const Scaled in = product_.dropped(x);
    const TensorView part = times_weight(in);
    times_f(part, outputs(y), 1, true);
    product_.add_term(0, product_.inner(in), part, false);
    times_f(part, outputs(y), 0, true);
  }

  // The gradient of multiply_forward. `of_product`: dy with the columns of multiplying adapters times f.
  void multiply_input_gradient(const Scaled& of_product, const TensorView& dx) const {
    product_.add_input_gradient(product_.inner_gradient(outputs(of_product.view)), dx, true);
  }

  // The gradient of add_forward.
  void add_input_gradient(const TensorView& dy, const TensorView& dx) const {
    const TensorView of_part = ctx_.temp(ctx_.dtype(), {dy.size(0), adapter_.outputs});
    times_f(outputs(dy), of_part, 1);
    const TensorView of_dropped = product_.drops() ? ctx_.temp(ctx_.dtype(), dx.shape()) : dx;
    layer_gemm(ctx_, {.a = of_part, .b = weight_rows(), .c = of_dropped, .accumulate = !product_.drops()});
    times_f(outputs(dy), of_part);
    product_.add_dropped_gradient(product_.inner_gradient(of_part), of_dropped, true);
    if (product_.drops()) product_.drop(of_dropped, dx, true);
  }

  // `multiplies`: of multiply_forward, otherwise of add_forward. `weight`, `a`: targets of these rows of W and of A's
  // parameter.
  void weight_gradient(const TensorView& dy, const Scaled& of_product, bool multiplies, const Scaled& x,
                       const GradientTarget& weight, const GradientTarget& a, GradientSink& sink) const {
    if (const GradientTarget m = sink.target(adapter_.magnitude); !m.view.empty()) {
      const Scaled in = product_.dropped(x);
      const TensorView u = times_weight(in);
      product_.add_term(0, product_.inner(in), u, true);
      ops::dora_magnitude_gradient(ctx_.compute(),
                                   {.dy = outputs(dy), .u = u, .n = norms(), .dm = m.view, .accumulate = m.accumulate});
    }
    if (multiplies) return product_.weight_gradient(outputs(of_product.view), x, a, sink);
    const TensorView of_part = ctx_.temp(ctx_.dtype(), {dy.size(0), adapter_.outputs});
    if (!weight.view.empty()) {
      times_f(outputs(dy), of_part, 1);
      layer_gemm(
          ctx_,
          {.a = of_part, .b = product_.dropped(x).view, .c = weight.view, .transpose_a = true, .accumulate = true});
    }
    times_f(outputs(dy), of_part);
    product_.weight_gradient(of_part, x, a, sink);
  }

  // to (+)= (f - minus) * from, [T, outputs]
  void times_f(const TensorView& from, const TensorView& to, double minus = 0, bool accumulate = false) const {
    ops::scale_by_norms(ctx_.compute(), {.x = from,
                                         .m = ctx_.weight(adapter_.magnitude),
                                         .n = norms(),
                                         .y = to,
                                         .minus = minus,
                                         .accumulate = accumulate});
  }

  TensorView outputs(const TensorView& y) const { return y.columns(adapter_.first_output, adapter_.outputs); }

 private:
  TensorView weight_rows() const { return linear_.weight_rows(ctx_, adapter_.first_output, adapter_.outputs); }
  // x W^T of the adapter's rows, [T, outputs]
  TensorView times_weight(const Scaled& x) const {
    const TensorView out = ctx_.temp(ctx_.dtype(), {x.view.size(0), adapter_.outputs});
    layer_gemm(ctx_, {.a = x.view, .b = weight_rows(), .c = out, .transpose_b = true, .scale_a = x.scale});
    return out;
  }
  // The squares of the norms of the rows of W + scale B A. Each call that needs them computes them once.
  const TensorView& norms() const {
    if (!norms_.empty()) return norms_;
    const TensorView w = weight_rows(), a = product_.a(), b = ctx_.weight(adapter_.b);
    const TensorView p = ctx_.temp(DType::f32, {adapter_.outputs, adapter_.rank}),
                     q = ctx_.temp(DType::f32, {adapter_.rank, adapter_.rank});
    norms_ = ctx_.temp(DType::f32, {adapter_.outputs});
    layer_gemm(ctx_, {.a = w, .b = a, .c = p, .transpose_b = true});
    layer_gemm(ctx_, {.a = a, .b = a, .c = q, .transpose_b = true});
    ops::dora_row_squares(ctx_.compute(), {.w = w, .b = b, .p = p, .q = q, .n = norms_, .scale = adapter_.scale});
    if (linear_.sums_inputs) ctx_.seams().tensor_reduce->sum(ctx_, norms_);
    return norms_;
  }

  LayerContext& ctx_;
  const Linear& linear_;
  const Adapter& adapter_;
  LowRankAdapters product_;
  mutable TensorView norms_;
};

}  // namespace hawser::nn
