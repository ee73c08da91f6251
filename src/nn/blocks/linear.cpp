#include "nn/blocks/linear.h"

#include <algorithm>

#include "nn/blocks/adapter_call.h"
#include "ops/bias/add_bias.h"
#include "ops/copy/add.h"
#include "ops/copy/copy.h"
#include "ops/gemm/gemm.h"

namespace hawser::nn {

namespace {

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

std::vector<std::vector<std::size_t>> Linear::adapter_groups() const {
  std::vector<std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    const auto shares = [&](const std::vector<std::size_t>& group) {
      return adapters[group.front()].a == adapters[i].a;
    };
    const auto found = std::ranges::find_if(groups, shares);
    if (found == groups.end()) {
      groups.push_back({i});
    } else {
      found->push_back(i);
    }
  }
  return groups;
}

std::vector<bool> Linear::multiplying_adapters(const LayerContext& ctx) const {
  std::vector<bool> out;
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    const Adapter& own = adapters[i];
    bool multiplies = own.magnitude >= 0 && !(own.dropout > 0 && ctx.training());
    for (std::size_t k = 0; k < i; ++k) {
      const Adapter& other = adapters[k];
      const bool apart = own.first_output + own.outputs <= other.first_output ||
                         other.first_output + other.outputs <= own.first_output;
      multiplies = multiplies && (apart || !out[k]);
    }
    out.push_back(multiplies);
  }
  return out;
}

Scaled Linear::product_gradient(LayerContext& ctx, const Scaled& dy) const {
  const std::vector<bool> multiplying = multiplying_adapters(ctx);
  if (std::ranges::find(multiplying, true) == multiplying.end()) return dy;
  HAWSER_CHECK(dy.scale.empty(), "linear: a scaled gradient of an adapter with a magnitude");
  const TensorView out = ctx.temp(ctx.dtype(), dy.view.shape());
  ops::copy(ctx.compute(), {.x = dy.view, .y = out});
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    if (!multiplying[i]) continue;
    const AdapterCall adapter(ctx, *this, i);
    adapter.times_f(adapter.outputs(out), adapter.outputs(out));
  }
  return out;
}

void Linear::forward(LayerContext& ctx, const Scaled& x, const TensorView& y) const {
  const Scaled& w = ctx.parameter(weight);
  const std::vector<bool> multiplying = multiplying_adapters(ctx);
  const bool bias_last = bias >= 0 && std::ranges::find(multiplying, true) != multiplying.end();
  const Scaled a = quantized(ctx, Operand::x, x, true);
  layer_gemm(ctx, {.a = a.view,
                   .b = w.view,
                   .c = y,
                   .transpose_b = true,
                   .bias = bias_last ? TensorView() : bias_of(ctx, bias),
                   .scale_a = a.scale,
                   .scale_b = w.scale});
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    if (multiplying[i]) AdapterCall(ctx, *this, i).multiply_forward(x, y);
  }
  if (bias_last) ops::add_bias(ctx.compute(), {.y = y, .bias = ctx.weight(bias)});
  for (const std::vector<std::size_t>& group : adapter_groups()) {
    const std::size_t i = group.front();
    if (multiplying[i]) continue;
    if (group.size() > 1) {
      AdapterGroup(ctx, *this, group).add_forward(x, y);
      continue;
    }
    const AdapterCall adapter(ctx, *this, i);
    if (adapters[i].magnitude >= 0) {
      adapter.add_decomposed(x, y);
    } else {
      adapter.add_forward(x, y);
    }
  }
}

void Linear::input_gradient(LayerContext& ctx, const Scaled& dy, const TensorView& dx) const {
  const std::vector<bool> multiplying = multiplying_adapters(ctx);
  const Scaled of_product = product_gradient(ctx, dy);
  const Scaled a = quantized(ctx, Operand::dy, of_product, true);
  const Side b = side(ctx.parameter(weight), true);
  layer_gemm(ctx,
             {.a = a.view, .b = b.view, .c = dx, .transpose_b = b.transpose, .scale_a = a.scale, .scale_b = b.scale});
  for (const std::vector<std::size_t>& group : adapter_groups()) {
    const std::size_t i = group.front();
    if (group.size() > 1) {
      AdapterGroup(ctx, *this, group).add_input_gradient(dy, dx);
      continue;
    }
    const AdapterCall adapter(ctx, *this, i);
    if (adapters[i].magnitude >= 0 && !multiplying[i]) {
      adapter.add_decomposed_input_gradient(dy, dx);
    } else {
      adapter.add_input_gradient(multiplying[i] ? of_product : dy, dx);
    }
  }
}

void Linear::weight_gradient(LayerContext& ctx, const Scaled& dy, const Scaled& x, GradientSink& sink) const {
  const GradientTarget target = sink.target(weight);
  const std::vector<bool> multiplying = multiplying_adapters(ctx);
  const Scaled of_product = reads_input(ctx.trainable()) ? product_gradient(ctx, dy) : dy;
  if (!target.view.empty()) {
    const Side a = side(quantized(ctx, Operand::dy, of_product, false), false);
    const Side b = side(quantized(ctx, Operand::x, x, false), true);
    layer_gemm(ctx, {.a = a.view,
                     .b = b.view,
                     .c = target.view,
                     .transpose_a = a.transpose,
                     .transpose_b = b.transpose,
                     .accumulate = target.accumulate,
                     .scale_a = a.scale,
                     .scale_b = b.scale});
  }
  for (const std::vector<std::size_t>& group : adapter_groups()) {
    const std::size_t i = group.front();
    if (group.size() > 1) {
      AdapterGroup(ctx, *this, group).weight_gradient(dy, x, sink);
      continue;
    }
    const AdapterCall adapter(ctx, *this, i);
    const GradientTarget a = sink.target(adapters[i].a);
    if (adapters[i].magnitude >= 0) {
      adapter.decomposed_weight_gradient(dy, of_product, multiplying[i], x, target, a, sink);
    } else {
      adapter.weight_gradient(dy, x, a, sink);
    }
  }
  if (bias < 0) return;
  if (const GradientTarget db = sink.target(bias); !db.view.empty()) {
    ops::bias_gradient(ctx.compute(), {.dy = dy.view, .db = db.view, .accumulate = db.accumulate, .scale = dy.scale});
  }
}

bool Linear::has_gradients(const TrainableParams& trainable) const {
  return reads_input(trainable) || trainable(bias);
}

bool Linear::reads_input(const TrainableParams& trainable) const {
  return trainable(weight) || std::ranges::any_of(adapters, [&](const Adapter& adapter) {
           return trainable(adapter.a) || trainable(adapter.b) || trainable(adapter.magnitude);
         });
}

bool Linear::draws_random_numbers() const {
  return std::ranges::any_of(adapters, [](const Adapter& adapter) { return adapter.dropout > 0; });
}

double Linear::adapter_flops(std::int64_t rows, std::int64_t inputs) const {
  double flops = 0;
  for (const Adapter& adapter : adapters) {
    flops += 2.0 * static_cast<double>(rows * adapter.rank) * static_cast<double>(inputs + adapter.outputs);
    if (adapter.magnitude < 0) continue;
    flops += 2.0 * static_cast<double>(inputs * adapter.rank) * static_cast<double>(adapter.outputs + adapter.rank);
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

RowParallelLinear::RowParallelLinear(Linear linear) : linear_(std::move(linear)) {
  linear_.sums_inputs = true;
}

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

}  // namespace hawser::nn
