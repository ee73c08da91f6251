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
  Scaled dropped(const Scaled& x) const {
    if (!drops()) return x;
    const TensorView out = ctx_.temp(ctx_.dtype(), x.view.shape());
    drop(x.view, out, false);
    return {out, x.scale};
  }

  // scale * dropout(x) A^T, [T, rank]
  TensorView inner(const Scaled& dropped_x) const {
    const TensorView out = ctx_.temp(ctx_.dtype(), {dropped_x.view.size(0), adapter_.rank});
    gemm(ctx_, {.a = dropped_x.view, .b = a_, .c = out, .transpose_b = true, .scale_a = dropped_x.scale});
    ops::scale(ctx_.compute(), {.x = out, .factor = adapter_.scale});
    return out;
  }

  // The gradient of dropout(x) A^T, [T, rank].
  TensorView inner_gradient(const Scaled& dy) const {
    const TensorView out = ctx_.temp(ctx_.dtype(), {dy.view.size(0), adapter_.rank});
    gemm(ctx_, {.a = outputs(dy.view), .b = b_, .c = out, .scale_a = dy.scale});
    ops::scale(ctx_.compute(), {.x = out, .factor = adapter_.scale});
    return out;
  }

  void add_forward(const Scaled& x, const TensorView& y) const {
    gemm(ctx_, {.a = inner(dropped(x)), .b = b_, .c = outputs(y), .transpose_b = true, .accumulate = true});
  }

  void add_input_gradient(const Scaled& dy, const TensorView& dx) const {
    const TensorView gradient = inner_gradient(dy);
    if (!drops()) {
      gemm(ctx_, {.a = gradient, .b = a_, .c = dx, .accumulate = true});
      return;
    }
    const TensorView of_dropped = ctx_.temp(ctx_.dtype(), dx.shape());
    gemm(ctx_, {.a = gradient, .b = a_, .c = of_dropped});
    drop(of_dropped, dx, true);
  }

  void weight_gradient(const Scaled& dy, const Scaled& x, GradientSink& sink) const {
    const GradientTarget a = sink.target(adapter_.a), b = sink.target(adapter_.b);
    if (a.view.empty() && b.view.empty()) return;
    const Scaled in = dropped(x);
    if (!b.view.empty()) {
      gemm(ctx_, {.a = outputs(dy.view),
                  .b = inner(in),
                  .c = b.view,
                  .transpose_a = true,
                  .accumulate = b.accumulate,
                  .scale_a = dy.scale});
    }
    if (!a.view.empty()) {
      gemm(ctx_, {.a = inner_gradient(dy),
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

// An operand of a GEMM: Scaled::transposed if there is one, else the view. `flag`: what the GEMM's transpose_a or
// transpose_b is for the former; it is the opposite for the latter.
struct Side {
  TensorView view;
  bool transpose = false;
  TensorView scale;
};
Side side(const Scaled& matrix, bool flag) {
  if (matrix.transposed.empty()) return {matrix.view, !flag, matrix.scale};
  return {matrix.transposed, flag, matrix.transposed_scale.empty() ? matrix.scale : matrix.transposed_scale};
}

// One scale is also that of the rows that a rank gets from others; a grid of scales is not.
Scaled redistributed(const Scaled& from, const TensorView& view) {
  HAWSER_CHECK(from.scale.empty() || from.scale.elements() == 1 || view.raw() == from.view.raw(), "linear: scales ",
               from.scale.shape().text(), " of blocks cannot be redistributed yet");
  return view.raw() == from.view.raw() ? from : Scaled(view, from.scale);
}

}  // namespace

Scaled Linear::quantized(LayerContext& ctx, Operand operand, const Scaled& matrix, bool record) const {
  Quantization how = ctx.quantization(site, operand);
  if (how.format == LinearFormat::compute || !matrix.scale.empty()) return matrix;
  if (!record) how.amax = {};
  return how.quantizer->quantize(ctx, how, matrix.view);
}

void Linear::forward(LayerContext& ctx, const Scaled& x, const TensorView& y) const {
  const Scaled& w = ctx.parameter(weight);
  const Scaled a = quantized(ctx, Operand::x, x, true);
  gemm(ctx, {.a = a.view,
             .b = w.view,
             .c = y,
             .transpose_b = true,
             .bias = bias_of(ctx, bias),
             .scale_a = a.scale,
             .scale_b = w.scale});
  for (std::size_t i = 0; i < adapters.size(); ++i) AdapterCall(ctx, *this, i).add_forward(x, y);
}

void Linear::input_gradient(LayerContext& ctx, const Scaled& dy, const TensorView& dx) const {
  const Scaled a = quantized(ctx, Operand::dy, dy, true);
  const Side b = side(ctx.parameter(weight), true);
  gemm(ctx, {.a = a.view, .b = b.view, .c = dx, .transpose_b = b.transpose, .scale_a = a.scale, .scale_b = b.scale});
  for (std::size_t i = 0; i < adapters.size(); ++i) AdapterCall(ctx, *this, i).add_input_gradient(dy, dx);
}

void Linear::weight_gradient(LayerContext& ctx, const Scaled& dy, const Scaled& x, GradientSink& sink) const {
  if (const GradientTarget target = sink.target(weight); !target.view.empty()) {
    const Side a = side(quantized(ctx, Operand::dy, dy, false), false);
    const Side b = side(quantized(ctx, Operand::x, x, false), true);
    gemm(ctx, {.a = a.view,
               .b = b.view,
               .c = target.view,
               .transpose_a = a.transpose,
               .transpose_b = b.transpose,
               .accumulate = target.accumulate,
               .scale_a = a.scale,
               .scale_b = b.scale});
  }
  for (std::size_t i = 0; i < adapters.size(); ++i) AdapterCall(ctx, *this, i).weight_gradient(dy, x, sink);
  if (bias < 0) return;
  if (const GradientTarget target = sink.target(bias); !target.view.empty()) {
    ops::bias_gradient(ctx.compute(),
                       {.dy = dy.view, .db = target.view, .accumulate = target.accumulate, .scale = dy.scale});
  }
}

bool Linear::has_gradients(const TrainableParams& trainable) const {
  return reads_input(trainable) || trainable(bias);
}

bool Linear::reads_input(const TrainableParams& trainable) const {
  return trainable(weight) || std::ranges::any_of(adapters, [&](const Adapter& adapter) {
           return trainable(adapter.a) || trainable(adapter.b);
         });
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

void ColumnParallelLinear::forward(LayerContext& ctx, const Scaled& x, const TensorView& y) const {
  linear_.forward(ctx, input(ctx, x), y);
}

TensorView ColumnParallelLinear::input_gradient(LayerContext& ctx, const Scaled& dy, const TensorView& dx) const {
  linear_.input_gradient(ctx, dy, dx);
  return ctx.seams().redistribute->backward(ctx, Boundary::column_input, dx);
}

void ColumnParallelLinear::weight_gradient(LayerContext& ctx, const Scaled& dy, const Scaled& x,
                                           GradientSink& sink) const {
  linear_.weight_gradient(ctx, dy, linear_.reads_input(ctx.trainable()) ? input(ctx, x) : Scaled(), sink);
}

Scaled ColumnParallelLinear::input(LayerContext& ctx, const Scaled& x) const {
  return redistributed(x, ctx.seams().redistribute->forward(ctx, Boundary::column_input, x.view));
}

RowParallelLinear::RowParallelLinear(Linear linear) : linear_(std::move(linear)) {}

void RowParallelLinear::forward(LayerContext& ctx, const Scaled& x, const TensorView& residual,
                                const TensorView& y) const {
  Linear product = linear_;
  product.bias = -1;
  product.forward(ctx, x, y);
  const TensorView sum = ctx.seams().redistribute->forward(ctx, Boundary::row_output, y);
  if (!residual.empty()) ops::add(ctx.compute(), {.a = sum, .b = residual, .y = sum});
  if (linear_.bias >= 0) ops::add_bias(ctx.compute(), {.y = sum, .bias = ctx.weight(linear_.bias)});
}

Scaled RowParallelLinear::output_gradient(LayerContext& ctx, const Scaled& dy) const {
  return redistributed(dy, ctx.seams().redistribute->backward(ctx, Boundary::row_output, dy.view));
}

void RowParallelLinear::input_gradient(LayerContext& ctx, const Scaled& dz, const TensorView& dx) const {
  linear_.input_gradient(ctx, dz, dx);
}

void RowParallelLinear::weight_gradient(LayerContext& ctx, const Scaled& dz, const Scaled& x,
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
