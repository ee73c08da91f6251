// `LowRankAdapters`: the ops of adapters' products B A in one call of their Linear. Internal to Linear. Formulas:
// Adapter, in nn/blocks/linear.h.
#pragma once

#include <algorithm>
#include <vector>

#include "nn/blocks/layer_gemm.h"
#include "nn/blocks/linear.h"
#include "ops/copy/scale.h"
#include "ops/dropout/dropout.h"

namespace hawser::nn {

// Adapters whose A are one parameter [R, in], R the sum of their ranks (add_adapters), so that one GEMM computes all
// x A^T, and one adds to dx. They have one scale. An adapter that drops, or has a magnitude, is alone.
class LowRankAdapters {
 public:
  // `members`: indices of the Linear's adapters. `first_row`: of x and dy in the calls below, among the Linear's rows.
  // `own_columns`: y and dy have only the columns of the one member.
  LowRankAdapters(LayerContext& ctx, const Linear& linear, const std::vector<std::size_t>& members,
                  std::int64_t first_row = 0, bool own_columns = false)
      : ctx_(ctx),
        site_(linear.site),
        first_input_(linear.first_input),
        first_row_(linear.begin(ctx.rows()) + first_row) {
    // Adapters of one A draw the same numbers, those of the one adapter that they are without tensor ranks.
    for (std::size_t i = 1; i <= members.front(); ++i) index_ += linear.repeats_a(i) ? 0 : 1;
    std::int64_t ranks = 0;
    for (const std::size_t i : members) {
      const Adapter& own = linear.adapters[i];
      const auto same_a = [&](const Adapter& other) { return other.a_row == own.a_row; };
      repeats_.push_back(std::ranges::any_of(members_, same_a));
      if (!repeats_.back()) ranks += own.rank;
      members_.push_back(own);
    }
    if (own_columns) members_.front().first_output = 0;
    const Adapter& first = members_.front();
    a_ = members_.size() > 1 ? ctx.weight(first.a) : ctx.weight(first.a).rows(first.a_row, first.rank);
    HAWSER_CHECK(a_.size(0) == ranks, "adapters of ", a_.text());
  }

  std::int64_t ranks() const { return a_.size(0); }

  // dropout(x)
  Scaled dropped(const Scaled& x) const {
    if (!drops()) return x;
    const TensorView out = ctx_.temp(ctx_.dtype(), x.view.shape());
    drop(x.view, out, false);
    return {out, x.scale};
  }

  // scale * dropout(x) A^T, [T, R], written to `out` or, if that is empty, to a temporary.
  TensorView inner(const Scaled& dropped_x, TensorView out = {}) const {
    if (out.empty()) out = ctx_.temp(ctx_.dtype(), {dropped_x.view.size(0), ranks()});
    layer_gemm(ctx_, {.a = dropped_x.view, .b = a_, .c = out, .transpose_b = true, .scale_a = dropped_x.scale});
    return scaled(out);
  }

  // The gradient of dropout(x) A^T, [T, R], of dy: that of scale * dropout(x) A^T B^T in the adapters' columns.
  TensorView inner_gradient(const Scaled& dy, TensorView out = {}) const {
    if (out.empty()) out = ctx_.temp(ctx_.dtype(), {dy.view.size(0), ranks()});
    for (std::size_t i = 0; i < members_.size(); ++i) {
      const Adapter& member = members_[i];
      layer_gemm(ctx_, {.a = outputs(dy.view, member),
                        .b = ctx_.weight(member.b),
                        .c = columns_of(out, member),
                        .accumulate = repeats_[i],
                        .scale_a = dy.scale});
    }
    return scaled(out);
  }

  // y (+)= scale * dropout(x) A^T B^T in the columns of a member.
  void add_term(std::size_t member, const TensorView& inner, const TensorView& y, bool accumulate) const {
    const Adapter& own = members_[member];
    layer_gemm(ctx_, {.a = columns_of(inner, own),
                      .b = ctx_.weight(own.b),
                      .c = outputs(y, own),
                      .transpose_b = true,
                      .accumulate = accumulate});
  }

  // dx (+)= their terms
  void add_input_gradient(const TensorView& inner_gradient, const TensorView& dx, bool accumulate) const {
    if (!drops()) return add_dropped_gradient(inner_gradient, dx, accumulate);
    const TensorView of_dropped = ctx_.temp(ctx_.dtype(), dx.shape());
    add_dropped_gradient(inner_gradient, of_dropped, false);
    drop(of_dropped, dx, accumulate);
  }
  // The gradient of dropout(x) (+)= their terms
  void add_dropped_gradient(const TensorView& inner_gradient, const TensorView& of_dropped, bool accumulate) const {
    layer_gemm(ctx_, {.a = inner_gradient, .b = a_, .c = of_dropped, .accumulate = accumulate});
  }

  // `a`: the target of the parameter that A is in.
  void weight_gradient(const Scaled& dy, const Scaled& x, const GradientTarget& a, GradientSink& sink,
                       AdapterTensors shared = {}) const {
    std::vector<GradientTarget> b;
    for (const Adapter& member : members_) b.push_back(sink.target(member.b));
    const bool wants_b = std::ranges::any_of(b, [](const GradientTarget& target) { return !target.view.empty(); });
    if (!wants_b && a.view.empty()) return;
    const Scaled in = a.view.empty() && !shared.inner.empty() ? Scaled() : dropped(x);
    if (wants_b && shared.inner.empty()) shared.inner = inner(in);
    for (std::size_t i = 0; i < b.size(); ++i) {
      if (b[i].view.empty()) continue;
      layer_gemm(ctx_, {.a = outputs(dy.view, members_[i]),
                        .b = columns_of(shared.inner, members_[i]),
                        .c = b[i].view,
                        .transpose_a = true,
                        .accumulate = b[i].accumulate,
                        .scale_a = dy.scale});
    }
    if (a.view.empty()) return;
    if (shared.inner_gradient.empty()) shared.inner_gradient = inner_gradient(dy);
    layer_gemm(ctx_, {.a = shared.inner_gradient,
                      .b = in.view,
                      .c = members_.size() > 1 ? a.view : a.view.rows(members_[0].a_row, ranks()),
                      .transpose_a = true,
                      .accumulate = a.accumulate,
                      .scale_b = in.scale});
  }

  const TensorView& a() const { return a_; }
  bool drops() const { return members_.front().dropout > 0 && ctx_.training(); }
  // y (+)= dropout(x), or the gradient of x from that of dropout(x).
  void drop(const TensorView& x, const TensorView& y, bool accumulate) const {
    ops::RandomKey random = ctx_.random(site_, index_);
    random.rows = random.rows.rows(first_row_, x.size(0));
    ops::dropout(ctx_.compute(), {.x = x,
                                  .y = y,
                                  .probability = members_.front().dropout,
                                  .random = random,
                                  .first_column = first_input_,
                                  .accumulate = accumulate});
  }

 private:
  static TensorView outputs(const TensorView& y, const Adapter& member) {
    return y.columns(member.first_output, member.outputs);
  }
  TensorView columns_of(const TensorView& inner, const Adapter& member) const {
    return members_.size() > 1 ? inner.columns(member.a_row, member.rank) : inner;
  }
  TensorView scaled(const TensorView& inner) const {
    ops::scale(ctx_.compute(), {.x = inner, .factor = members_.front().scale});
    return inner;
  }

  LayerContext& ctx_;
  Site site_;
  std::int64_t first_input_, first_row_;  // among the full rows
  int index_ = 0;
  TensorView a_;
  std::vector<Adapter> members_;
  std::vector<bool> repeats_;  // a member before has the same A
};

}  // namespace hawser::nn
