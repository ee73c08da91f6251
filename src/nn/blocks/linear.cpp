#include "nn/blocks/linear.h"

#include <algorithm>
#include <optional>

#include "nn/blocks/decomposed_adapter.h"
#include "nn/blocks/row_sum.h"
#include "nn/blocks/scaled_parts.h"
#include "nn/blocks/unpacked_weight.h"
#include "ops/bias/add_bias.h"
#include "ops/copy/transpose.h"

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
  ops::ScaleKind kind = ops::ScaleKind::one;
};
Side side(const Scaled& matrix, bool flag) {
  if (matrix.transposed.empty()) return {matrix.view, !flag, matrix.scale, matrix.kind};
  const TensorView& scale = matrix.transposed_scale.empty() ? matrix.scale : matrix.transposed_scale;
  return {matrix.transposed, flag, scale, matrix.kind};
}

// GEMMs of FP8 read both operands of a weight's gradient transposed; what was gathered in FP8 is not yet.
Scaled with_transpose(LayerContext& ctx, const Scaled& matrix) {
  if (matrix.view.empty() || !matrix.transposed.empty() || !is_fp8(matrix.view.dtype())) return matrix;
  Scaled out = matrix;
  out.transposed = ctx.temp(matrix.view.dtype(), {matrix.view.size(1), matrix.view.size(0)});
  ops::transpose(ctx.compute(), {.x = matrix.view, .y = out.transposed});
  return out;
}

// The matrix [T, ranks] of a group in one of AdapterTensors; empty if that is. `before`: ranks of the groups before.
TensorView matrix_of(const TensorView& tensor, std::int64_t before, std::int64_t ranks) {
  return tensor.empty() ? tensor : tensor.rows(before, ranks).reshape({tensor.size(1), ranks});
}
TensorView rows_of_matrix(const TensorView& tensor, std::int64_t before, std::int64_t ranks, std::int64_t first_row,
                          std::int64_t rows) {
  return tensor.empty() ? tensor : matrix_of(tensor, before, ranks).rows(first_row, rows);
}

}  // namespace

Quantization reading(Quantization how, Linear::ReadBy reader) {
  how.rows = reader != Linear::ReadBy::weight_gradient;
  how.transposed = reader != Linear::ReadBy::product;
  if (!how.rows) how.amax = how.saturated = {};
  return how;
}

Scaled Linear::quantized(LayerContext& ctx, Operand operand, const Scaled& matrix, ReadBy reader,
                         std::int64_t first_row) const {
  Quantization how = ctx.quantization(site, operand);
  if (how.format == LinearFormat::compute || matrix.scaled()) return matrix;
  how = reading(how, reader);
  how.first_row = begin(ctx.rows()) + first_row;
  if (how.records_only) {
    if (!how.amax.empty()) how.quantizer->record(ctx, how, matrix.view);
    return matrix;
  }
  return how.quantizer->quantize(ctx, how, matrix.view);
}

Scaled Linear::weight_for(LayerContext& ctx, int parameter, bool transposed) const {
  const Quantization how = ctx.quantization(site, transposed ? Operand::dy : Operand::x);
  Scaled w = ctx.parameter(parameter);
  w.view = unpacked_weight(ctx, w.view, w.nf4, ctx.dtype());
  if (how.format == LinearFormat::compute || how.records_only) return w;
  return how.quantizer->quantize_weight(ctx, w, transposed);
}

Scaled Linear::rounded_once(LayerContext& ctx, const Scaled& dy) const {
  if (!adapters.empty() || rounds_by_part(ctx)) return {};
  return quantized(ctx, Operand::dy, dy, reads_input(ctx.trainable()) ? ReadBy::both : ReadBy::product);
}

bool Linear::rounds_by_part(const LayerContext& ctx) const {
  return more_weight >= 0 && ctx.quantization(site, Operand::dy).format == LinearFormat::fp8_block;
}

std::vector<Linear::Rows> Linear::rows_of_weight(const LayerContext& ctx) const {
  const auto count = [&](int parameter) {
    const Scaled& w = ctx.parameter(parameter);
    return w.view.empty() ? w.transposed.size(1) : w.view.size(0);
  };
  std::vector<Rows> rows = {{weight, bias, 0, count(weight)}};
  if (more_weight >= 0) rows.push_back({more_weight, more_bias, rows.front().count, count(more_weight)});
  return rows;
}

TensorView Linear::weight_rows(const LayerContext& ctx, std::int64_t first, std::int64_t rows) const {
  for (const Rows& part : rows_of_weight(ctx)) {
    if (first >= part.first && first + rows <= part.first + part.count) {
      return ctx.weight(part.weight).rows(first - part.first, rows);
    }
  }
  HAWSER_CHECK(false, "linear: rows ", first, " to ", first + rows, " of a weight are in two parameters");
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

std::vector<bool> Linear::adding_adapters(std::int64_t outputs) const {
  std::vector<bool> adding(adapters.size());
  std::vector<const Adapter*> before;
  std::int64_t filled = 0;
  for (const std::vector<std::size_t>& group : adapter_groups()) {
    for (const std::size_t i : group) {
      const Adapter& own = adapters[i];
      if (own.magnitude >= 0) return {};
      adding[i] = std::ranges::any_of(before, [&](const Adapter* other) {
        return own.first_output < other->first_output + other->outputs &&
               other->first_output < own.first_output + own.outputs;
      });
      if (!adding[i]) filled += own.outputs;
      before.push_back(&own);
    }
  }
  return filled == outputs ? adding : std::vector<bool>();
}

void Linear::add_terms(LayerContext& ctx, const Scaled& x, const TensorView& y, const TensorView& inner,
                       std::int64_t first_row, const std::vector<bool>& adding) const {
  const std::vector<bool> multiplying = multiplying_adapters(ctx);
  std::int64_t before = 0;
  for (const std::vector<std::size_t>& group : adapter_groups()) {
    if (adapters[group.front()].magnitude >= 0) {
      for (const std::size_t i : group) {
        if (!multiplying[i]) DecomposedAdapter(ctx, *this, i, first_row).add_forward(x, y);
      }
      continue;
    }
    const LowRankAdapters low_rank(ctx, *this, group, first_row);
    const TensorView own =
        low_rank.inner(low_rank.dropped(x), rows_of_matrix(inner, before, low_rank.ranks(), first_row, x.view.size(0)));
    for (std::size_t m = 0; m < group.size(); ++m) low_rank.add_term(m, own, y, adding.empty() || adding[group[m]]);
    before += low_rank.ranks();
  }
}

void Linear::add_input_terms(LayerContext& ctx, const Scaled& dy, const Scaled& of_product, const TensorView& dx,
                             const TensorView& inner_gradient, std::int64_t first_row) const {
  const std::vector<bool> multiplying = multiplying_adapters(ctx);
  bool accumulate = adapter_ranks() == 0;
  std::int64_t before = 0;
  for (const std::vector<std::size_t>& group : adapter_groups()) {
    if (adapters[group.front()].magnitude >= 0) {
      for (const std::size_t i : group) {
        const DecomposedAdapter adapter(ctx, *this, i, first_row);
        if (multiplying[i]) {
          adapter.multiply_input_gradient(of_product, dx);
        } else {
          adapter.add_input_gradient(dy.view, dx);
        }
      }
      continue;
    }
    const LowRankAdapters low_rank(ctx, *this, group, first_row);
    const TensorView own = rows_of_matrix(inner_gradient, before, low_rank.ranks(), first_row, dy.view.size(0));
    low_rank.add_input_gradient(own.empty() ? low_rank.inner_gradient(dy) : own, dx, accumulate);
    before += low_rank.ranks();
    accumulate = true;
  }
}

Scaled Linear::product_gradient(LayerContext& ctx, const Scaled& dy) const {
  const std::vector<bool> multiplying = multiplying_adapters(ctx);
  HAWSER_CHECK(!dy.scaled() || std::ranges::none_of(adapters, [](const Adapter& a) { return a.magnitude >= 0; }),
               "linear: a scaled gradient of an adapter with a magnitude");
  if (std::ranges::find(multiplying, true) == multiplying.end()) return dy;
  const TensorView out = ctx.temp(ctx.dtype(), dy.view.shape());
  ops::copy(ctx.compute(), {.x = dy.view, .y = out});
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    if (!multiplying[i]) continue;
    const DecomposedAdapter adapter(ctx, *this, i);
    adapter.times_f(adapter.outputs(out), adapter.outputs(out));
  }
  return out;
}

void Linear::forward(LayerContext& ctx, const Scaled& x, const TensorView& y, const TensorView& inner,
                     std::int64_t first_row) const {
  const std::vector<bool> adding = adding_adapters(y.size(1)), multiplying = multiplying_adapters(ctx);
  const bool terms_first = !adding.empty();
  const bool bias_last = bias >= 0 && std::ranges::find(multiplying, true) != multiplying.end();
  if (terms_first) add_terms(ctx, x, y, inner, first_row, adding);
  const Scaled a = quantized(ctx, Operand::x, x, ReadBy::product, first_row);
  const std::vector<Rows> parts = rows_of_weight(ctx);
  for (const Rows& part : parts) {
    const Scaled w = weight_for(ctx, part.weight, false);
    layer_gemm(ctx, {.a = a.view,
                     .b = w.view,
                     .c = y.columns(part.first, part.count),
                     .transpose_b = true,
                     .accumulate = terms_first,
                     .bias = bias_last ? TensorView() : bias_of(ctx, part.bias),
                     .scale_a = a.scale,
                     .scale_b = w.scale,
                     .scaling_a = a.kind,
                     .scaling_b = w.kind});
  }
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    if (multiplying[i]) DecomposedAdapter(ctx, *this, i, first_row).multiply_forward(x, y);
  }
  for (const Rows& part : parts) {
    if (!bias_last) break;
    ops::add_bias(ctx.compute(), {.y = y.columns(part.first, part.count), .bias = ctx.weight(part.bias)});
  }
  if (!terms_first) add_terms(ctx, x, y, inner, first_row, adding);
}

TensorView Linear::make_inner_gradient(LayerContext& ctx) const {
  return adapter_ranks() == 0 ? TensorView() : ctx.temp(ctx.dtype(), {adapter_ranks(), rows(ctx.rows())});
}

void Linear::adapter_gradient(LayerContext& ctx, const Scaled& dy, const TensorView& inner_gradient,
                              std::int64_t first_row) const {
  if (inner_gradient.empty()) return;
  std::int64_t before = 0;
  for (const std::vector<std::size_t>& group : adapter_groups()) {
    const LowRankAdapters low_rank(ctx, *this, group);
    low_rank.inner_gradient(dy, rows_of_matrix(inner_gradient, before, low_rank.ranks(), first_row, dy.view.size(0)));
    before += low_rank.ranks();
  }
}

void Linear::input_gradient(LayerContext& ctx, const Scaled& dy, const TensorView& dx, const TensorView& inner_gradient,
                            std::int64_t first_row, const Scaled& rounded) const {
  const Scaled of_product = product_gradient(ctx, dy);
  const bool terms_first = adapter_ranks() > 0;
  if (terms_first) add_input_terms(ctx, dy, of_product, dx, inner_gradient, first_row);
  const bool by_part = rounded.view.empty() && rounds_by_part(ctx);
  Scaled all = by_part ? of_product : rounded;
  if (all.view.empty()) all = quantized(ctx, Operand::dy, of_product, ReadBy::product, first_row);
  for (const Rows& part : rows_of_weight(ctx)) {
    Scaled a = columns_of(ctx, all, part.first, part.count);
    if (by_part) a = quantized(ctx, Operand::dy, a, ReadBy::product, first_row);
    const Side b = side(weight_for(ctx, part.weight, true), true);
    layer_gemm(ctx, {.a = a.view,
                     .b = b.view,
                     .c = dx,
                     .transpose_b = b.transpose,
                     .accumulate = terms_first || part.first > 0,
                     .scale_a = a.scale,
                     .scale_b = b.scale,
                     .scaling_a = a.kind,
                     .scaling_b = b.kind});
  }
  if (!terms_first) add_input_terms(ctx, dy, of_product, dx, inner_gradient, first_row);
}

Scaled Linear::gradient_beside(LayerContext& ctx, const Scaled& x, const Scaled& dy, const Scaled& rounded) const {
  Quantization how = ctx.quantization(site, Operand::dy);
  // x was saved in FP8; no one keeps the gradients of a pass that records only.
  if (how.records_only && x.scaled() && !dy.scaled()) {
    how.records_only = how.rows = false;
    how.transposed = true;
    how.scale = how.amax = how.saturated = {};
    how.first_row = begin(ctx.rows());
    return how.quantizer->quantize(ctx, how, dy.view);
  }
  if (!rounded.view.empty()) return rounded;
  return quantized(ctx, Operand::dy, dy, ReadBy::weight_gradient);
}

void Linear::weight_gradient(LayerContext& ctx, const Scaled& dy, const Scaled& x, GradientSink& sink,
                             const AdapterTensors& adapter_tensors, const Scaled& rounded) const {
  const std::vector<Rows> parts = rows_of_weight(ctx);
  std::vector<GradientTarget> targets;
  for (const Rows& part : parts) targets.push_back(sink.target(part.weight));
  const std::vector<bool> multiplying = multiplying_adapters(ctx);
  const Scaled of_product = reads_input(ctx.trainable()) ? product_gradient(ctx, dy) : dy;
  std::optional<Scaled> quantized_dy, quantized_x;
  for (std::size_t p = 0; p < parts.size(); ++p) {
    const GradientTarget& target = targets[p];
    if (target.view.empty()) continue;
    if (!quantized_x) quantized_x = with_transpose(ctx, quantized(ctx, Operand::x, x, ReadBy::weight_gradient));
    if (!quantized_dy) quantized_dy = with_transpose(ctx, gradient_beside(ctx, *quantized_x, of_product, rounded));
    const Side a = side(columns_of(ctx, *quantized_dy, parts[p].first, parts[p].count), false);
    const Side b = side(*quantized_x, true);
    layer_gemm(ctx, {.a = a.view,
                     .b = b.view,
                     .c = target.view,
                     .transpose_a = a.transpose,
                     .transpose_b = b.transpose,
                     .accumulate = target.accumulate,
                     .scale_a = a.scale,
                     .scale_b = b.scale,
                     .scaling_a = a.kind,
                     .scaling_b = b.kind});
  }
  std::int64_t before = 0;
  for (const std::vector<std::size_t>& group : adapter_groups()) {
    GradientTarget a = sink.target(adapters[group.front()].a);
    if (adapters[group.front()].magnitude >= 0) {
      for (const std::size_t i : group) {
        std::size_t part = parts.size() - 1;
        while (parts[part].first > adapters[i].first_output) --part;
        GradientTarget target = targets[part];
        if (!target.view.empty()) {
          target.view = target.view.rows(adapters[i].first_output - parts[part].first, adapters[i].outputs);
        }
        a.accumulate = a.accumulate || i != group.front();
        DecomposedAdapter(ctx, *this, i).weight_gradient(dy.view, of_product, multiplying[i], x, target, a, sink);
      }
      continue;
    }
    const LowRankAdapters low_rank(ctx, *this, group);
    low_rank.weight_gradient(dy, x, a, sink,
                             {matrix_of(adapter_tensors.inner, before, low_rank.ranks()),
                              matrix_of(adapter_tensors.inner_gradient, before, low_rank.ranks())});
    before += low_rank.ranks();
  }
  for (const Rows& part : parts) {
    if (part.bias < 0) continue;
    if (const GradientTarget db = sink.target(part.bias); !db.view.empty()) {
      ops::bias_gradient(ctx.compute(), {.dy = columns_of(ctx, dy, part.first, part.count).view,
                                         .db = db.view,
                                         .accumulate = db.accumulate,
                                         .scale = dy.scale});
    }
  }
}

std::vector<int> Linear::weights_at(Site place) const {
  if (place != site) return {};
  return more_weight < 0 ? std::vector{weight} : std::vector{weight, more_weight};
}

bool Linear::has_gradients(const TrainableParams& trainable) const {
  const auto has_trainable_b = [&](const Adapter& adapter) { return trainable(adapter.b); };
  return reads_input(trainable) || trainable(bias) || trainable(more_bias) ||
         std::ranges::any_of(adapters, has_trainable_b);
}

bool Linear::reads_input(const TrainableParams& trainable) const {
  const bool b_reads_inner = adapter_ranks() > 0;
  return trainable(weight) || trainable(more_weight) || std::ranges::any_of(adapters, [&](const Adapter& adapter) {
           return trainable(adapter.a) || trainable(adapter.magnitude) || (trainable(adapter.b) && !b_reads_inner);
         });
}

bool Linear::draws_random_numbers() const {
  return std::ranges::any_of(adapters, [](const Adapter& adapter) { return adapter.dropout > 0; });
}

bool Linear::repeats_a(std::size_t adapter) const {
  const Adapter& own = adapters[adapter];
  return std::any_of(adapters.begin(), adapters.begin() + static_cast<std::ptrdiff_t>(adapter),
                     [&](const Adapter& other) { return other.a == own.a && other.a_row == own.a_row; });
}

std::int64_t Linear::adapter_ranks() const {
  std::int64_t ranks = 0;
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    if (adapters[i].magnitude >= 0) return 0;
    ranks += repeats_a(i) ? 0 : adapters[i].rank;
  }
  return ranks;
}

double Linear::adapter_flops(std::int64_t rows, std::int64_t inputs) const {
  double flops = 0;
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    const Adapter& adapter = adapters[i];
    const std::int64_t columns = (repeats_a(i) ? 0 : inputs) + adapter.outputs;
    flops += 2.0 * static_cast<double>(rows * adapter.rank) * static_cast<double>(columns);
    if (adapter.magnitude < 0) continue;
    flops += 2.0 * static_cast<double>(inputs * adapter.rank) * static_cast<double>(adapter.outputs + adapter.rank);
  }
  return flops;
}

namespace {

// Of one that is not sliced: that of a single device.
Redistribute& seam_of(const LayerContext& ctx, const Linear& linear) {
  static Redistribute single;
  return linear.sliced ? *ctx.seams().redistribute : single;
}

constexpr auto kTogether = Redistribute::Rows::together;

// Gathers this rank's rows of x or dy, quantized if the seam wants it and every reader reads it so.
std::unique_ptr<Redistribute::Gather> gather_rows(LayerContext& ctx, const Linear& linear, Operand operand,
                                                  const Scaled& rows, Redistribute::Rows needed) {
  Redistribute& seam = seam_of(ctx, linear);
  const bool bias = operand == Operand::dy && (linear.bias >= 0 || linear.more_bias >= 0);
  if (!seam.gathers_quantized() || rows.scaled() || bias || !linear.adapters.empty())
    return seam.gather(ctx, rows, needed);
  const Quantization how = ctx.quantization(linear.site, operand);
  if (how.format != LinearFormat::fp8_delayed || how.records_only || how.scale.empty())
    return seam.gather(ctx, rows, needed);
  // A pass that reads it for the gradient of the weight alone has no amax.
  return seam.gather(ctx, linear.quantized(ctx, operand, rows, Linear::ReadBy::product, ctx.rows().first), needed);
}

}  // namespace

void ColumnParallelLinear::forward(LayerContext& ctx, const Scaled& x, const TensorView& y,
                                   const TensorView& inner) const {
  const auto gather = gather_rows(ctx, linear_, Operand::x, x, Redistribute::Rows::in_pieces);
  for (int p = 0; p < gather->pieces(); ++p) {
    const RowPiece piece = gather->wait(p);
    linear_.forward(ctx, piece.rows, y.rows(piece.first_row, piece.rows.view.size(0)), inner, piece.first_row);
  }
  gather->finish();
}

void ColumnParallelLinear::backward(LayerContext& ctx, const Scaled& dy, const Scaled& x, const TensorView& dx,
                                    GradientSink& sink, const AdapterTensors& adapter_tensors) const {
  Redistribute& seam = seam_of(ctx, linear_);
  const Scaled rounded = linear_.rounded_once(ctx, dy);
  if (!seam.overlaps()) {
    weight_gradient(ctx, dy, x, sink, adapter_tensors, rounded);
    return input_gradient(ctx, dy, dx, adapter_tensors.inner_gradient, rounded);
  }
  const auto gather =
      linear_.reads_input(ctx.trainable()) ? gather_rows(ctx, linear_, Operand::x, x, kTogether) : nullptr;
  const auto sum = seam.sum(ctx, dx);
  write_pieces(*sum, [&](const TensorView& rows, std::int64_t first) {
    linear_.input_gradient(ctx, rows_of(ctx, dy, first, rows.size(0)), rows, adapter_tensors.inner_gradient, first,
                           rows_of(ctx, rounded, first, rows.size(0)));
  });
  linear_.weight_gradient(ctx, dy, gather != nullptr ? gather->all() : Scaled(), sink, adapter_tensors, rounded);
  if (gather != nullptr) gather->finish();
  sum->finish();
}

void ColumnParallelLinear::input_gradient(LayerContext& ctx, const Scaled& dy, const TensorView& dx,
                                          const TensorView& inner_gradient, const Scaled& rounded) const {
  write_row_sum(ctx, seam_of(ctx, linear_), dx, {}, [&](const TensorView& rows, std::int64_t first) {
    linear_.input_gradient(ctx, rows_of(ctx, dy, first, rows.size(0)), rows, inner_gradient, first,
                           rows_of(ctx, rounded, first, rows.size(0)));
  });
}

void ColumnParallelLinear::weight_gradient(LayerContext& ctx, const Scaled& dy, const Scaled& x, GradientSink& sink,
                                           const AdapterTensors& adapter_tensors, const Scaled& rounded) const {
  if (!linear_.reads_input(ctx.trainable())) return linear_.weight_gradient(ctx, dy, {}, sink, adapter_tensors);
  const auto gather = gather_rows(ctx, linear_, Operand::x, x, kTogether);
  linear_.weight_gradient(ctx, dy, gather->all(), sink, adapter_tensors, rounded);
  gather->finish();
}

RowParallelLinear::RowParallelLinear(Linear linear) : linear_(std::move(linear)) {
  linear_.sums_inputs = linear_.sliced;
}

void RowParallelLinear::forward(LayerContext& ctx, const Scaled& x, const TensorView& residual, const TensorView& y,
                                const TensorView& inner) const {
  Linear product = linear_;
  product.bias = -1;
  write_row_sum(ctx, seam_of(ctx, linear_), y, residual, [&](const TensorView& rows, std::int64_t first) {
    product.forward(ctx, rows_of(ctx, x, first, rows.size(0)), rows, inner, first);
  });
  if (linear_.bias >= 0) ops::add_bias(ctx.compute(), {.y = y, .bias = ctx.weight(linear_.bias)});
}

RowParallelLinear::OutputGradient RowParallelLinear::input_gradient(LayerContext& ctx, const Scaled& dy,
                                                                    const TensorView& dx, bool delayed) const {
  const auto gather = gather_rows(ctx, linear_, Operand::dy, dy, kTogether);
  if (dx.empty()) {
    const Scaled all = gather->all();
    gather->finish();
    return {all, {}, {}};
  }
  const TensorView inner_gradient = linear_.make_inner_gradient(ctx);
  Scaled rounded;
  for (int p = 0; p < gather->pieces(); ++p) {
    const RowPiece piece = gather->wait(p);
    const TensorView rows = dx.rows(piece.first_row, piece.rows.view.size(0));
    linear_.adapter_gradient(ctx, piece.rows, inner_gradient, piece.first_row);
    if (gather->pieces() == 1 && !delayed) rounded = linear_.rounded_once(ctx, piece.rows);
    linear_.input_gradient(ctx, piece.rows, rows, inner_gradient, piece.first_row, rounded);
  }
  const Scaled all = gather->all();
  gather->finish();
  return {all, inner_gradient, rounded};
}

}  // namespace hawser::nn
