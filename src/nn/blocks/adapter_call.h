// `AdapterCall`: the views and ops of one adapter of a Linear in one call. Internal to Linear. Formulas: Adapter, in
// nn/blocks/linear.h.
#pragma once

#include "nn/blocks/linear.h"
#include "ops/copy/add.h"
#include "ops/copy/copy.h"
#include "ops/copy/scale.h"
#include "ops/dora/dora.h"
#include "ops/dropout/dropout.h"
#include "ops/gemm/gemm.h"

namespace hawser::nn {

// One GEMM with its workspace from the context. GPUs have no GEMM of float32 operands with a bf16 result (the gradient of
// a router's weight): a float32 temporary receives its sums, which are then rounded or added, with the same bits.
inline void layer_gemm(LayerContext& ctx, ops::Gemm gemm) {
  const TensorView c = gemm.c;
  const bool widened =
      gemm.a.dtype() == DType::f32 && gemm.b.dtype() == DType::f32 && c.dtype() == DType::bf16 && gemm.bias.empty();
  const bool adds = widened && gemm.accumulate;
  if (widened) {
    gemm.c = ctx.temp(DType::f32, c.shape());
    gemm.accumulate = false;
  }
  const std::int64_t bytes = ops::gemm_workspace(gemm, ctx.compute().target());
  if (bytes > 0) gemm.workspace = ctx.temp(DType::u8, {bytes});
  ops::gemm(ctx.compute(), gemm);
  if (adds) {
    ops::add(ctx.compute(), {.a = gemm.c, .b = c, .y = c});
  } else if (widened) {
    ops::cast(ctx.compute(), {.x = gemm.c, .y = c});
  }
}

class AdapterCall {
 public:
  AdapterCall(LayerContext& ctx, const Linear& linear, std::size_t index)
      : ctx_(ctx),
        linear_(linear),
        index_(static_cast<int>(index)),
        adapter_(linear.adapters[index]),
        a_(ctx.weight(adapter_.a).rows(adapter_.a_row, adapter_.rank)),
        b_(ctx.weight(adapter_.b)) {}

  // dropout(x)
  Scaled dropped(const Scaled& x) const {
    if (!drops()) return x;
    const TensorView out = ctx_.temp(ctx_.dtype(), x.view.shape());
    drop(x.view, out, false);
    return {out, x.scale};
  }

  // scale * dropout(x) A^T, [T, rank]
  TensorView inner(const Scaled& dropped_x) const {
    const TensorView out = ctx_.temp(ctx_.dtype(), {dropped_x.view.size(0), adapter_.rank});
    layer_gemm(ctx_, {.a = dropped_x.view, .b = a_, .c = out, .transpose_b = true, .scale_a = dropped_x.scale});
    ops::scale(ctx_.compute(), {.x = out, .factor = adapter_.scale});
    return out;
  }

  // The gradient of dropout(x) A^T, [T, rank].
  TensorView inner_gradient(const Scaled& dy) const { return inner_gradient_of(outputs(dy.view), dy.scale); }
  TensorView inner_gradient_of(const TensorView& dy, const TensorView& scale) const {
    const TensorView out = ctx_.temp(ctx_.dtype(), {dy.size(0), adapter_.rank});
    layer_gemm(ctx_, {.a = dy, .b = b_, .c = out, .scale_a = scale});
    ops::scale(ctx_.compute(), {.x = out, .factor = adapter_.scale});
    return out;
  }

  void add_forward(const Scaled& x, const TensorView& y) const {
    layer_gemm(ctx_, {.a = inner(dropped(x)), .b = b_, .c = outputs(y), .transpose_b = true, .accumulate = true});
  }

  // y, which has x W^T alone, becomes f * (y + scale * x A^T B^T).
  void multiply_forward(const Scaled& x, const TensorView& y) const {
    add_forward(x, y);
    times_f(outputs(y), outputs(y));
  }

  // y += f * (u + v) - u,  u = dropout(x) W^T, v = scale * dropout(x) A^T B^T
  void add_decomposed(const Scaled& x, const TensorView& y) const {
    const Scaled in = dropped(x);
    const TensorView part = product(in);
    times_f(part, outputs(y), 1, true);
    layer_gemm(ctx_, {.a = inner(in), .b = b_, .c = part, .transpose_b = true});
    times_f(part, outputs(y), 0, true);
  }

  // `dy`: the gradient of scale * dropout(x) A^T B^T.
  void add_input_gradient(const Scaled& dy, const TensorView& dx) const {
    const TensorView gradient = inner_gradient(dy);
    if (!drops()) {
      layer_gemm(ctx_, {.a = gradient, .b = a_, .c = dx, .accumulate = true});
      return;
    }
    const TensorView of_dropped = ctx_.temp(ctx_.dtype(), dx.shape());
    layer_gemm(ctx_, {.a = gradient, .b = a_, .c = of_dropped});
    drop(of_dropped, dx, true);
  }

  // The gradient of add_decomposed.
  void add_decomposed_input_gradient(const Scaled& dy, const TensorView& dx) const {
    const TensorView of_product = ctx_.temp(ctx_.dtype(), {dy.view.size(0), adapter_.outputs});
    times_f(outputs(dy.view), of_product, 1);
    const TensorView of_dropped = drops() ? ctx_.temp(ctx_.dtype(), dx.shape()) : dx;
    layer_gemm(ctx_, {.a = of_product, .b = weight_rows(), .c = of_dropped, .accumulate = !drops()});
    times_f(outputs(dy.view), of_product);
    layer_gemm(ctx_, {.a = inner_gradient_of(of_product, {}), .b = a_, .c = of_dropped, .accumulate = true});
    if (drops()) drop(of_dropped, dx, true);
  }

  // `dy`: of the Linear. `of_product`: with the columns of multiplying adapters times f. `multiplies`: this is one.
  void decomposed_weight_gradient(const Scaled& dy, const Scaled& of_product, bool multiplies, const Scaled& x,
                                  const GradientTarget& weight, const GradientTarget& a, GradientSink& sink) const {
    if (const GradientTarget m = sink.target(adapter_.magnitude); !m.view.empty()) {
      const Scaled in = dropped(x);
      const TensorView u = product(in);
      layer_gemm(ctx_, {.a = inner(in), .b = b_, .c = u, .transpose_b = true, .accumulate = true});
      ops::dora_magnitude_gradient(
          ctx_.compute(), {.dy = outputs(dy.view), .u = u, .n = norms(), .dm = m.view, .accumulate = m.accumulate});
    }
    if (multiplies) return weight_gradient(of_product, x, a, sink);
    const TensorView scaled = ctx_.temp(ctx_.dtype(), dy.view.shape());
    if (!weight.view.empty()) {
      times_f(outputs(dy.view), outputs(scaled), 1);
      layer_gemm(ctx_, {.a = outputs(scaled),
                        .b = dropped(x).view,
                        .c = weight.view.rows(adapter_.first_output, adapter_.outputs),
                        .transpose_a = true,
                        .accumulate = true});
    }
    times_f(outputs(dy.view), outputs(scaled));
    weight_gradient(scaled, x, a, sink);
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

  // `dy`: the gradient of scale * dropout(x) A^T B^T. `of_a`: the target of the parameter that A is in.
  void weight_gradient(const Scaled& dy, const Scaled& x, const GradientTarget& of_a, GradientSink& sink) const {
    const GradientTarget b = sink.target(adapter_.b);
    const GradientTarget a =
        of_a.view.empty() ? of_a : GradientTarget{of_a.view.rows(adapter_.a_row, adapter_.rank), of_a.accumulate};
    if (a.view.empty() && b.view.empty()) return;
    const Scaled in = dropped(x);
    if (!b.view.empty()) {
      layer_gemm(ctx_, {.a = outputs(dy.view),
                        .b = inner(in),
                        .c = b.view,
                        .transpose_a = true,
                        .accumulate = b.accumulate,
                        .scale_a = dy.scale});
    }
    if (!a.view.empty()) {
      layer_gemm(ctx_, {.a = inner_gradient(dy),
                        .b = in.view,
                        .c = a.view,
                        .transpose_a = true,
                        .accumulate = a.accumulate,
                        .scale_b = in.scale});
    }
  }

 private:
  bool drops() const { return adapter_.dropout > 0 && ctx_.training(); }
  void drop(const TensorView& x, const TensorView& y, bool accumulate) const {
    ops::dropout(ctx_.compute(), {.x = x,
                                  .y = y,
                                  .probability = adapter_.dropout,
                                  .random = ctx_.random(linear_.site, index_),
                                  .first_column = linear_.first_input,
                                  .accumulate = accumulate});
  }
  TensorView weight_rows() const { return ctx_.weight(linear_.weight).rows(adapter_.first_output, adapter_.outputs); }
  // x W^T of the adapter's rows, [T, outputs]
  TensorView product(const Scaled& x) const {
    const TensorView out = ctx_.temp(ctx_.dtype(), {x.view.size(0), adapter_.outputs});
    layer_gemm(ctx_, {.a = x.view, .b = weight_rows(), .c = out, .transpose_b = true, .scale_a = x.scale});
    return out;
  }
  // The squares of the norms of the rows of W + scale B A. Each call that needs them computes them once.
  const TensorView& norms() const {
    if (!norms_.empty()) return norms_;
    const TensorView w = weight_rows();
    const TensorView p = ctx_.temp(DType::f32, {adapter_.outputs, adapter_.rank}),
                     q = ctx_.temp(DType::f32, {adapter_.rank, adapter_.rank});
    norms_ = ctx_.temp(DType::f32, {adapter_.outputs});
    layer_gemm(ctx_, {.a = w, .b = a_, .c = p, .transpose_b = true});
    layer_gemm(ctx_, {.a = a_, .b = a_, .c = q, .transpose_b = true});
    ops::dora_row_squares(ctx_.compute(), {.w = w, .b = b_, .p = p, .q = q, .n = norms_, .scale = adapter_.scale});
    if (linear_.sums_inputs) ctx_.seams().tensor_reduce->sum(ctx_, norms_);
    return norms_;
  }

  LayerContext& ctx_;
  const Linear& linear_;
  int index_;
  const Adapter& adapter_;
  TensorView a_, b_;
  mutable TensorView norms_;
};

// Several adapters whose A are one parameter [n rank, in] (add_adapters): without dropout and magnitude, with one scale.
class AdapterGroup {
 public:
  AdapterGroup(LayerContext& ctx, const Linear& linear, const std::vector<std::size_t>& members)
      : ctx_(ctx), a_(ctx.weight(linear.adapters[members.front()].a)) {
    for (const std::size_t i : members) members_.push_back(&linear.adapters[i]);
    HAWSER_CHECK(a_.size(0) == static_cast<std::int64_t>(members.size()) * rank(), "adapters of ", a_.text());
  }

  void add_forward(const Scaled& x, const TensorView& y) const {
    const TensorView inner = inner_of(x);
    for (const Adapter* member : members_) {
      layer_gemm(ctx_, {.a = columns_of(inner, *member),
                        .b = ctx_.weight(member->b),
                        .c = outputs(y, *member),
                        .transpose_b = true,
                        .accumulate = true});
    }
  }

  void add_input_gradient(const Scaled& dy, const TensorView& dx) const {
    layer_gemm(ctx_, {.a = inner_gradient(dy), .b = a_, .c = dx, .accumulate = true});
  }

  void weight_gradient(const Scaled& dy, const Scaled& x, GradientSink& sink) const {
    TensorView inner;
    for (const Adapter* member : members_) {
      const GradientTarget b = sink.target(member->b);
      if (b.view.empty()) continue;
      if (inner.empty()) inner = inner_of(x);
      layer_gemm(ctx_, {.a = outputs(dy.view, *member),
                        .b = columns_of(inner, *member),
                        .c = b.view,
                        .transpose_a = true,
                        .accumulate = b.accumulate,
                        .scale_a = dy.scale});
    }
    const GradientTarget a = sink.target(members_.front()->a);
    if (a.view.empty()) return;
    layer_gemm(ctx_, {.a = inner_gradient(dy),
                      .b = x.view,
                      .c = a.view,
                      .transpose_a = true,
                      .accumulate = a.accumulate,
                      .scale_b = x.scale});
  }

 private:
  std::int64_t rank() const { return members_.front()->rank; }
  TensorView outputs(const TensorView& y, const Adapter& member) const {
    return y.columns(member.first_output, member.outputs);
  }
  TensorView columns_of(const TensorView& inner, const Adapter& member) const {
    return inner.columns(member.a_row, member.rank);
  }
  TensorView scaled(const TensorView& inner) const {
    ops::scale(ctx_.compute(), {.x = inner, .factor = members_.front()->scale});
    return inner;
  }
  // scale * x A^T of all, [T, n rank]
  TensorView inner_of(const Scaled& x) const {
    const TensorView out = ctx_.temp(ctx_.dtype(), {x.view.size(0), a_.size(0)});
    layer_gemm(ctx_, {.a = x.view, .b = a_, .c = out, .transpose_b = true, .scale_a = x.scale});
    return scaled(out);
  }
  // The gradient of x A^T of all, [T, n rank].
  TensorView inner_gradient(const Scaled& dy) const {
    const TensorView out = ctx_.temp(ctx_.dtype(), {dy.view.size(0), a_.size(0)});
    for (const Adapter* member : members_) {
      layer_gemm(ctx_, {.a = outputs(dy.view, *member),
                        .b = ctx_.weight(member->b),
                        .c = columns_of(out, *member),
                        .scale_a = dy.scale});
    }
    return scaled(out);
  }

  LayerContext& ctx_;
  TensorView a_;
  std::vector<const Adapter*> members_;
};

}  // namespace hawser::nn
