#include "nn/blocks/linear.h"

#include <algorithm>
#include <cmath>

#include "ops/bias/add_bias.h"
#include "ops/copy/add.h"
#include "ops/copy/scale.h"
#include "ops/gemm/gemm.h"

namespace hawser::nn {

namespace {

// One GEMM with its workspace from the context.
void gemm(LayerContext& ctx, ops::Gemm gemm) {
  const std::int64_t bytes = ops::gemm_workspace(gemm, ctx.compute().target());
  if (bytes > 0) gemm.workspace = ctx.temp(DType::u8, {bytes});
  ops::gemm(ctx.compute(), gemm);
}

// The views and steps of one adapter in one call.
class AdapterCall {
 public:
  AdapterCall(LayerContext& ctx, const Linear& linear, std::size_t index)
      : ctx_(ctx),
        linear_(linear),
        index_(static_cast<int>(index)),
        adapter_(linear.adapters[index]),
        a_(ctx.weight(adapter_.a)),
        b_(ctx.weight(adapter_.b)) {}

  // dropout(x)
  TensorView dropped(const TensorView& x) const {
    if (!drops()) return x;
    const TensorView out = ctx_.temp(ctx_.dtype(), x.shape());
    drop(x, out, false);
    return out;
  }

  // scale * dropout(x) A^T, [T, rank]
  TensorView inner(const TensorView& dropped_x) const {
    const TensorView out = ctx_.temp(ctx_.dtype(), {dropped_x.size(0), adapter_.rank});
    gemm(ctx_, {.a = dropped_x, .b = a_, .c = out, .transpose_b = true});
    ops::scale(ctx_.compute(), {.x = out, .factor = adapter_.scale});
    return out;
  }

  // The gradient of dropout(x) A^T, [T, rank].
  TensorView inner_gradient(const TensorView& dy) const {
    const TensorView out = ctx_.temp(ctx_.dtype(), {dy.size(0), adapter_.rank});
    gemm(ctx_, {.a = outputs(dy), .b = b_, .c = out});
    ops::scale(ctx_.compute(), {.x = out, .factor = adapter_.scale});
    return out;
  }

  void add_forward(const TensorView& x, const TensorView& y) const {
    gemm(ctx_, {.a = inner(dropped(x)), .b = b_, .c = outputs(y), .transpose_b = true, .accumulate = true});
  }

  void add_input_gradient(const TensorView& dy, const TensorView& dx) const {
    const TensorView gradient = inner_gradient(dy);
    if (!drops()) {
      gemm(ctx_, {.a = gradient, .b = a_, .c = dx, .accumulate = true});
      return;
    }
    const TensorView of_dropped = ctx_.temp(ctx_.dtype(), dx.shape());
    gemm(ctx_, {.a = gradient, .b = a_, .c = of_dropped});
    drop(of_dropped, dx, true);
  }

  void weight_gradient(const TensorView& dy, const TensorView& x, GradientSink& sink) const {
    const GradientTarget a = sink.target(adapter_.a), b = sink.target(adapter_.b);
    if (a.view.empty() && b.view.empty()) return;
    const TensorView in = dropped(x);
    if (!b.view.empty()) {
      gemm(ctx_, {.a = outputs(dy), .b = inner(in), .c = b.view, .transpose_a = true, .accumulate = b.accumulate});
    }
    if (!a.view.empty()) {
      gemm(ctx_, {.a = inner_gradient(dy), .b = in, .c = a.view, .transpose_a = true, .accumulate = a.accumulate});
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
  TensorView outputs(const TensorView& y) const { return y.columns(adapter_.first_output, adapter_.outputs); }

  LayerContext& ctx_;
  const Linear& linear_;
  int index_;
  const Adapter& adapter_;
  TensorView a_, b_;
};

TensorView bias_of(const LayerContext& ctx, int bias) {
  return bias >= 0 ? ctx.weight(bias) : TensorView();
}

}  // namespace

void Linear::forward(LayerContext& ctx, const TensorView& x, const TensorView& y) const {
  const Weight& w = ctx.parameter(weight);
  gemm(ctx, {.a = x, .b = w.view, .c = y, .transpose_b = true, .bias = bias_of(ctx, bias), .scale_b = w.scale});
  for (std::size_t i = 0; i < adapters.size(); ++i) AdapterCall(ctx, *this, i).add_forward(x, y);
}

void Linear::input_gradient(LayerContext& ctx, const TensorView& dy, const TensorView& dx) const {
  const Weight& w = ctx.parameter(weight);
  gemm(ctx, {.a = dy, .b = w.view, .c = dx, .scale_b = w.scale});
  for (std::size_t i = 0; i < adapters.size(); ++i) AdapterCall(ctx, *this, i).add_input_gradient(dy, dx);
}

void Linear::weight_gradient(LayerContext& ctx, const TensorView& dy, const TensorView& x, GradientSink& sink) const {
  if (const GradientTarget target = sink.target(weight); !target.view.empty()) {
    gemm(ctx, {.a = dy, .b = x, .c = target.view, .transpose_a = true, .accumulate = target.accumulate});
  }
  for (std::size_t i = 0; i < adapters.size(); ++i) AdapterCall(ctx, *this, i).weight_gradient(dy, x, sink);
  if (bias < 0) return;
  if (const GradientTarget target = sink.target(bias); !target.view.empty()) {
    ops::bias_gradient(ctx.compute(), {.dy = dy, .db = target.view, .accumulate = target.accumulate});
  }
}

bool Linear::draws_random_numbers() const {
  return std::ranges::any_of(adapters, [](const Adapter& adapter) { return adapter.dropout > 0; });
}

double Linear::adapter_flops(std::int64_t rows, std::int64_t inputs) const {
  double flops = 0;
  for (const Adapter& adapter : adapters) {
    flops += 2.0 * static_cast<double>(rows * adapter.rank) * static_cast<double>(inputs + adapter.outputs);
  }
  return flops;
}

void ColumnParallelLinear::forward(LayerContext& ctx, const TensorView& x, const TensorView& y) const {
  linear_.forward(ctx, ctx.seams().redistribute->forward(ctx, Boundary::column_input, x), y);
}

TensorView ColumnParallelLinear::input_gradient(LayerContext& ctx, const TensorView& dy, const TensorView& dx) const {
  linear_.input_gradient(ctx, dy, dx);
  return ctx.seams().redistribute->backward(ctx, Boundary::column_input, dx);
}

void ColumnParallelLinear::weight_gradient(LayerContext& ctx, const TensorView& dy, const TensorView& x,
                                           GradientSink& sink) const {
  linear_.weight_gradient(ctx, dy, ctx.seams().redistribute->forward(ctx, Boundary::column_input, x), sink);
}

RowParallelLinear::RowParallelLinear(Linear linear) : linear_(std::move(linear)) {}

void RowParallelLinear::forward(LayerContext& ctx, const TensorView& x, const TensorView& residual,
                                const TensorView& y) const {
  Linear product = linear_;
  product.bias = -1;
  product.forward(ctx, x, y);
  const TensorView sum = ctx.seams().redistribute->forward(ctx, Boundary::row_output, y);
  if (!residual.empty()) ops::add(ctx.compute(), {.a = sum, .b = residual, .y = sum});
  if (linear_.bias >= 0) ops::add_bias(ctx.compute(), {.y = sum, .bias = ctx.weight(linear_.bias)});
}

TensorView RowParallelLinear::output_gradient(LayerContext& ctx, const TensorView& dy) const {
  return ctx.seams().redistribute->backward(ctx, Boundary::row_output, dy);
}

void RowParallelLinear::input_gradient(LayerContext& ctx, const TensorView& dz, const TensorView& dx) const {
  linear_.input_gradient(ctx, dz, dx);
}

void RowParallelLinear::weight_gradient(LayerContext& ctx, const TensorView& dz, const TensorView& x,
                                        GradientSink& sink) const {
  linear_.weight_gradient(ctx, dz, x, sink);
}

std::vector<Adapter> add_adapters(const std::vector<AdapterConfig>& configs, const std::vector<AdapterTarget>& targets,
                                  std::int64_t inputs, PartOf part, std::vector<Param>& params) {
  std::vector<Adapter> adapters;
  const bool row_parallel = part.total > 0;
  const auto all_inputs = static_cast<double>(row_parallel ? part.total : inputs);
  const Initial normal{Initial::Kind::normal, 1.0 / std::sqrt(3.0 * all_inputs)};
  for (const AdapterTarget& target : targets) {
    for (const AdapterConfig& config : configs) {
      if (config.target != target.name) continue;
      adapters.push_back({.a = static_cast<int>(params.size()),
                          .b = static_cast<int>(params.size()) + 1,
                          .rank = config.rank,
                          .first_output = target.first_output,
                          .outputs = target.outputs,
                          .scale = config.scale,
                          .dropout = config.dropout});
      const std::string a = target.name + ".lora_A.weight", b = target.name + ".lora_B.weight";
      const Shape shape_a{config.rank, inputs}, shape_b{target.outputs, config.rank};
      params.push_back(row_parallel ? sliced_param(a, shape_a, 1, part, normal, true)
                                    : partial_param(a, shape_a, normal, true));
      params.push_back(row_parallel ? partial_param(b, shape_b, {}, true)
                                    : sliced_param(b, shape_b, 0, target.part, {}, true));
      params.back().segments.front().file.row_order = target.row_order;
      for (std::size_t i = params.size() - 2; i < params.size(); ++i) params[i].segments.front().may_be_absent = true;
    }
  }
  return adapters;
}

}  // namespace hawser::nn
