// Shapes: T rows, C width, E experts, L of this rank, K experts per token, F inner width, R and S rows
// (nn::TokenExchange).
#include "nn/blocks/moe_layer.h"

#include <algorithm>

#include "ops/copy/copy.h"
#include "ops/gemm/grouped_gemm.h"
#include "ops/moe/dispatch.h"
#include "ops/moe/router.h"

namespace hawser::nn {

namespace {

enum MoeParameter { kMoeNorm, kRouterWeight, kExpertGateUp, kExpertDown, kMoeNormBias };

constexpr const char* kNumber = "{}";

std::string name_of_expert(const std::string& name, std::int64_t expert) {
  const std::size_t at = name.find(kNumber);
  HAWSER_CHECK(at != std::string::npos, name, " has no place for an expert's number");
  return cat(name.substr(0, at), expert, name.substr(at + 2), ".weight");
}

// What the names of the experts have in common: "model.layers.0.block_sparse_moe.experts".
std::string name_of_experts(const std::string& name) {
  std::string common = name.substr(0, name.find(kNumber));
  while (common.ends_with('.')) common.pop_back();
  return common;
}

std::vector<Param> moe_params(const MoeConfig& c) {
  std::vector<Param> params = {norm_weight(c.norm, c.width, c.norm_config)};
  params.back().shared = c.shared_norm;
  Param router = full_param(c.router + ".weight", {c.experts, c.width}, {Initial::Kind::normal, c.initial_std}, true);
  router.flat.domain = Domain::replicated;
  router.flat.gathered = DType::f32;
  router.of_residual_rows = true;
  params.push_back(std::move(router));
  HAWSER_CHECK(c.experts % c.part.parts == 0, c.router, ": ", c.experts, " experts on ", c.part.parts, " ranks");
  const std::int64_t local = c.local_experts(), first = c.part.index * local;
  std::vector<Segment> gate_up, down;
  for (std::int64_t i = 0; i < local; ++i) {
    const std::int64_t e = first + i;
    std::int64_t row = i * c.up_size();
    if (is_gated(c.activation)) {
      gate_up.push_back({.name = name_of_expert(c.gate, e), .row = row, .rows = c.inner});
      row += c.inner;
    }
    gate_up.push_back({.name = name_of_expert(c.up, e), .row = row, .rows = c.inner});
    down.push_back({.name = name_of_expert(c.down, e), .row = i * c.width, .rows = c.width});
  }
  // Checkpoints have some states by a parameter's name: other experts need another.
  const std::string names = name_of_experts(c.up),
                    experts = c.part.parts == 1 ? names : cat(names, '.', first, '-', first + local - 1);
  params.push_back(fused_param(experts + ".gate_up.weight", gate_up, {local * c.up_size(), c.width},
                               {Initial::Kind::normal, c.initial_std}, true));
  params.push_back(fused_param(experts + ".down.weight", down, {local * c.width, c.inner},
                               {Initial::Kind::normal, c.output_std}, true));
  for (const int param : {kExpertGateUp, kExpertDown}) {
    params[static_cast<std::size_t>(param)].flat.domain = Domain::expert;
    params[static_cast<std::size_t>(param)].of_residual_rows = true;
  }
  if (c.norm_config.bias) {
    params.push_back(norm_bias(c.norm, c.width));
    params.back().shared = c.shared_norm;
  }
  return params;
}

template <class Args, class Op>
void grouped(LayerContext& ctx, Args args, Op op) {
  const std::int64_t bytes = ops::grouped_gemm_workspace(args, ctx.compute().target());
  if (bytes > 0) args.workspace = ctx.temp(DType::u8, {bytes});
  op(ctx.compute(), args);
}

// A parameter of the local experts, or its gradient, as [L, rows of one, columns].
TensorView by_expert(const TensorView& view, std::int64_t experts) {
  return view.reshape({experts, view.size(0) / experts, view.size(1)});
}

// The router computes in float32.
TensorView widened(LayerContext& ctx, const TensorView& x) {
  if (x.dtype() == DType::f32) return x;
  const TensorView out = ctx.temp(DType::f32, x.shape());
  ops::cast(ctx.compute(), {.x = x, .y = out});
  return out;
}

}  // namespace

MoeLayer::MoeLayer(MoeConfig config, std::shared_ptr<const RouterLoss> loss)
    : config_(std::move(config)),
      params_(moe_params(config_)),
      loss_(std::move(loss)),
      norm_(config_.norm_config, kMoeNorm, kMoeNormBias),
      router_{.weight = kRouterWeight} {
  HAWSER_CHECK(loss_ != nullptr && loss_->config() == config_.loss(), config_.router, ": the loss of another router");
}

std::array<TensorSpec, MoeLayer::kSavedCount> MoeLayer::tensors(const RowCounts& counts, DType dtype) const {
  const MoeConfig& c = config_;
  const std::int64_t rows = counts.residual, token_rows = ops::expert_rows(rows, c.top_k, c.experts),
                     expert_rows = TokenExchange::max_expert_rows(rows, c.top_k, c.experts, c.local_experts());
  const auto exchanged = [&](const Shape& shape) { return c.part.parts == 1 ? Shape() : shape; };
  return {{{"norm_statistics", DType::f32, norm_.statistics(rows)},
           {"normed", dtype, {rows, c.width}},
           {"router_logits", DType::f32, {rows, c.experts}},
           {"experts", DType::i32, {rows, c.top_k}},
           {"expert_weights", DType::f32, {rows, c.top_k}},
           {"expert_offsets", DType::i32, {c.experts + 1}},
           {"expert_rows", DType::i32, {rows, c.top_k}},
           {"expert_assignments", DType::i32, {token_rows}},
           {"gate_up", dtype, {expert_rows, c.up_size()}},
           {"inner", dtype, {expert_rows, c.inner}},
           {"dgate_up", dtype, {expert_rows, c.up_size()}},
           {"drouter_logits", DType::f32, {rows, c.experts}},
           {"exchanged_counts", DType::i32, exchanged({2, c.experts})},
           {"exchanged_offsets", DType::i32, exchanged({c.local_experts() + 1})},
           {"exchanged_rows", DType::i32, exchanged({expert_rows, 1})}}};
}

std::vector<SavedSpec> MoeLayer::saved_specs(const RowCounts& rows, DType dtype, const SavePolicy& policy,
                                             const TrainableParams& trainable) const {
  const auto all = tensors(rows, dtype);
  const bool again = policy.recomputes_gate_up(), normed = reads_normed(trainable);
  const bool gate_up = trainable(kExpertGateUp), down = trainable(kExpertDown), router = trainable(kRouterWeight);
  // Backward reads `inner` for the gradients of the experts' weights of tokens, whatever is trainable.
  SavedSpec inner = inner_spec(all[kInner], policy, down);
  if (!down && !policy.recomputes_pointwise()) inner = saved_spec(all[kInner], Pass::forward, Pass::backward);
  return {statistics_spec(all[kStatistics], policy, again, normed),
          normed_spec(all[kNormed], policy, again, normed),
          saved_spec(all[kLogits], Pass::forward, Pass::backward),
          saved_spec(all[kExperts], Pass::forward, Pass::backward),
          saved_spec(all[kWeights], Pass::forward, last_reader(policy, down)),
          saved_spec(all[kOffsets], Pass::forward, last_reader(policy, gate_up || down)),
          saved_spec(all[kRows], Pass::forward, Pass::backward),
          saved_spec(all[kAssignments], Pass::forward, last_reader(policy, gate_up || down)),
          saved_spec(all[kGateUp], again ? Pass::recompute : Pass::forward, Pass::backward),
          inner,
          output_gradient_spec(all[kDgateUp], policy, gate_up),
          output_gradient_spec(all[kDlogits], policy, router),
          saved_spec(all[kCounts], Pass::forward, last_reader(policy, gate_up || down)),
          saved_spec(all[kExpertOffsets], Pass::forward, last_reader(policy, gate_up || down)),
          saved_spec(all[kTokenRows], Pass::forward, Pass::backward)};
}

bool MoeLayer::reads_normed(const TrainableParams& trainable) {
  return trainable(kExpertGateUp) || trainable(kRouterWeight);
}

TensorView MoeLayer::normed_again(LayerContext& ctx, const Saved& saved) const {
  if (!reads_normed(ctx.trainable())) return {};
  return norm_.again(ctx, saved.x, saved.tensors[kStatistics], saved.tensors[kNormed]);
}

TensorView MoeLayer::saved_or_temp(LayerContext& ctx, const Saved& saved, SavedIndex index) const {
  return nn::saved_or_temp(ctx, saved, index, tensors(ctx.rows(), ctx.dtype())[index]);
}

template <class View>
MoeLayer::Routing MoeLayer::routing_of(LayerContext& ctx, const View& view) const {
  const MoeConfig& c = config_;
  const std::int64_t rows = ctx.rows().residual;
  Routing r;
  TokenExchange::Routing& x = r.exchange;
  x.rows = ops::expert_rows(rows, c.top_k, c.experts);
  x.expert_rows = TokenExchange::max_expert_rows(rows, c.top_k, c.experts, c.local_experts());
  x.max_sent = rows * std::min(c.top_k, c.local_experts());
  r.logits = view(kLogits);
  r.experts = view(kExperts);
  r.weights = view(kWeights);
  x.offsets = x.expert_offsets = view(kOffsets);
  r.rows = view(kRows);
  x.assignments = view(kAssignments);
  if (c.part.parts > 1) {
    x.counts = view(kCounts);
    x.expert_offsets = view(kExpertOffsets);
    x.token_rows = view(kTokenRows);
  }
  return r;
}

MoeLayer::Routing MoeLayer::saved_routing(LayerContext& ctx, const Saved& saved) const {
  return routing_of(ctx, [&](SavedIndex index) { return saved.tensors[index]; });
}

MoeLayer::Routing MoeLayer::route(LayerContext& ctx, const TensorView& normed, const Saved& saved) const {
  const Routing r = routing_of(ctx, [&](SavedIndex index) { return saved_or_temp(ctx, saved, index); });
  router_.forward(ctx, widened(ctx, normed), r.logits);
  const TensorView& mask = ctx.batch().token_mask;
  ops::router_top_k(ctx.compute(), {.logits = r.logits,
                                    .mask = mask.empty() ? mask : mask.rows(ctx.rows().first, ctx.rows().residual),
                                    .experts = r.experts,
                                    .weights = r.weights,
                                    .normalise = config_.normalise_top_k});
  ops::expert_plan(
      ctx.compute(),
      {.experts = r.experts, .offsets = r.exchange.offsets, .rows = r.rows, .assignments = r.exchange.assignments});
  ctx.seams().tokens->route(ctx, r.exchange);
  if (const TensorView statistics = ctx.auxiliary().statistics; !statistics.empty()) {
    const std::int64_t bytes = ops::router_statistics_workspace(normed.size(0), config_.experts);
    ops::router_statistics(ctx.compute(), {.logits = r.logits,
                                           .experts = r.experts,
                                           .statistics = statistics,
                                           .workspace = ctx.temp(DType::u8, {bytes})});
  }
  return r;
}

// Copies x [T, C] to `rows` [R, C], times `weights` if they are given; returns the rows of experts [S, C].
TensorView MoeLayer::dispatch(LayerContext& ctx, const Routing& routing, const TensorView& x, const TensorView& weights,
                              const TensorView& rows) const {
  ops::dispatch_rows(ctx.compute(), {.x = x,
                                     .assignments = routing.exchange.assignments,
                                     .offsets = routing.exchange.offsets,
                                     .weights = weights,
                                     .y = rows,
                                     .per_token = config_.top_k});
  return ctx.seams().tokens->dispatch(ctx, routing.exchange, rows);
}

TensorView MoeLayer::dispatch(LayerContext& ctx, const Routing& routing, const TensorView& x) const {
  return dispatch(ctx, routing, x, {}, ctx.temp(ctx.dtype(), {routing.exchange.rows, x.size(1)}));
}

void MoeLayer::gate_up(LayerContext& ctx, const Routing& routing, const TensorView& normed,
                       const TensorView& out) const {
  grouped(
      ctx,
      ops::GroupedGemm{.a = dispatch(ctx, routing, normed),
                       .b = by_expert(ctx.weight(kExpertGateUp), config_.local_experts()),
                       .c = out,
                       .offsets = routing.exchange.expert_offsets,
                       .transpose_b = true,
                       .flops = 2.0 * static_cast<double>(routing.rows.elements() * config_.width * config_.up_size())},
      ops::grouped_gemm);
}

void MoeLayer::forward(LayerContext& ctx, const TensorView& x, const TensorView& residual, const TensorView& y,
                       const Saved& saved) const {
  const TensorView statistics = saved_or_temp(ctx, saved, kStatistics), normed = saved_or_temp(ctx, saved, kNormed);
  norm_.forward(ctx, x, normed, statistics);
  const Routing routing = route(ctx, normed, saved);
  const TensorView gate_up_rows = saved_or_temp(ctx, saved, kGateUp);
  gate_up(ctx, routing, normed, gate_up_rows);
  const TensorView inner = saved_or_temp(ctx, saved, kInner);
  activate(ctx, config_.activation, gate_up_rows, inner);
  const TensorView out = ctx.temp(ctx.dtype(), {inner.size(0), config_.width});
  grouped(ctx,
          ops::GroupedGemm{.a = inner,
                           .b = by_expert(ctx.weight(kExpertDown), config_.local_experts()),
                           .c = out,
                           .offsets = routing.exchange.expert_offsets,
                           .transpose_b = true,
                           .flops = 2.0 * static_cast<double>(routing.rows.elements() * config_.width * config_.inner)},
          ops::grouped_gemm);
  ops::combine_rows(ctx.compute(), {.x = ctx.seams().tokens->combine(ctx, routing.exchange, out),
                                    .rows = routing.rows,
                                    .weights = routing.weights,
                                    .residual = residual,
                                    .y = y});
}

void MoeLayer::recompute(LayerContext& ctx, const Saved& saved, const SavePolicy&) const {
  const TensorView normed = saved_or_temp(ctx, saved, kNormed);
  norm_.forward(ctx, saved.x, normed, saved_or_temp(ctx, saved, kStatistics));
  gate_up(ctx, saved_routing(ctx, saved), normed, saved_or_temp(ctx, saved, kGateUp));
}

TensorView MoeLayer::weighted_backward(LayerContext& ctx, const Routing& routing, const TensorView& inner,
                                       const TensorView& dinner) const {
  const TensorView dweights = ctx.temp(DType::f32, routing.weights.shape());
  if (config_.part.parts == 1) {
    ops::weighted_rows_backward(
        ctx.compute(),
        {.x = inner, .dx = dinner, .rows = routing.rows, .weights = routing.weights, .dweights = dweights});
    return dweights;
  }
  // The weights as rows of one column: an assignment is then a token with one expert.
  const TokenExchange::Routing& exchange = routing.exchange;
  const Shape column{dweights.elements(), 1};
  const TensorView sent = ctx.temp(DType::f32, {exchange.rows, 1}),
                   of_rows = ctx.temp(DType::f32, {exchange.expert_rows, 1});
  ops::dispatch_rows(ctx.compute(), {.x = routing.weights.reshape(column),
                                     .assignments = exchange.assignments,
                                     .offsets = exchange.offsets,
                                     .y = sent});
  ops::weighted_rows_backward(ctx.compute(), {.x = inner,
                                              .dx = dinner,
                                              .rows = exchange.token_rows,
                                              .weights = ctx.seams().tokens->dispatch(ctx, exchange, sent),
                                              .dweights = of_rows});
  ops::combine_rows(ctx.compute(), {.x = ctx.seams().tokens->combine(ctx, exchange, of_rows),
                                    .rows = routing.rows.reshape(column),
                                    .y = dweights.reshape(column)});
  return dweights;
}

void MoeLayer::backward(LayerContext& ctx, const TensorView& dy, const TensorView& dresidual, const TensorView& dx,
                        const Saved& saved, GradientSink& sink, const SavePolicy& policy) const {
  const Routing routing = saved_routing(ctx, saved);
  const TensorView statistics = saved.tensors[kStatistics], gate_up_rows = saved.tensors[kGateUp];
  const std::int64_t rows = saved.x.size(0), expert_rows = gate_up_rows.size(0);
  // The gradient of each expert's output without its weight, so that the weight's gradient is a dot product of rows of
  // `inner`: the rows of the output are not needed.
  const TensorView dout = dispatch(ctx, routing, dy), dinner = ctx.temp(ctx.dtype(), {expert_rows, config_.inner});
  grouped(ctx,
          ops::GroupedGemm{.a = dout,
                           .b = by_expert(ctx.weight(kExpertDown), config_.local_experts()),
                           .c = dinner,
                           .offsets = routing.exchange.expert_offsets,
                           .flops = 2.0 * static_cast<double>(routing.rows.elements() * config_.width * config_.inner)},
          ops::grouped_gemm);
  const TensorView inner = saved_or_temp(ctx, saved, kInner);
  if (policy.recomputes_pointwise()) activate(ctx, config_.activation, gate_up_rows, inner);
  const TensorView dweights = weighted_backward(ctx, routing, inner, dinner);
  const bool delayed = policy.delay_weight_gradients;
  // Without delayed weight gradients gate and up have no later reader: their gradient overwrites them.
  const TensorView dgate_up = saved.tensors[kDgateUp].empty() ? gate_up_rows : saved.tensors[kDgateUp];
  activate_backward(ctx, config_.activation, gate_up_rows, dinner, dgate_up, {});
  const TensorView dlogits = saved_or_temp(ctx, saved, kDlogits);
  ops::router_top_k_backward(ctx.compute(), {.logits = routing.logits,
                                             .experts = routing.experts,
                                             .weights = routing.weights,
                                             .dweights = dweights,
                                             .factors = ctx.auxiliary().factors,
                                             .dlogits = dlogits,
                                             .normalise = config_.normalise_top_k});
  if (!delayed) {
    weight_gradients(ctx, routing, dy, inner, dgate_up, dlogits, normed_again(ctx, saved), sink);
  }
  const TensorView drows = ctx.temp(ctx.dtype(), {expert_rows, config_.width});
  grouped(
      ctx,
      ops::GroupedGemm{.a = dgate_up,
                       .b = by_expert(ctx.weight(kExpertGateUp), config_.local_experts()),
                       .c = drows,
                       .offsets = routing.exchange.expert_offsets,
                       .flops = 2.0 * static_cast<double>(routing.rows.elements() * config_.width * config_.up_size())},
      ops::grouped_gemm);
  const TensorView through_router = ctx.temp(DType::f32, {rows, config_.width});
  router_.input_gradient(ctx, dlogits, through_router);
  const TensorView dnormed = ctx.temp(ctx.dtype(), {rows, config_.width});
  ops::combine_rows(ctx.compute(), {.x = ctx.seams().tokens->combine(ctx, routing.exchange, drows),
                                    .rows = routing.rows,
                                    .residual = through_router,
                                    .y = dnormed});
  norm_.backward(ctx, saved.x, statistics, dnormed, dresidual, dx, sink);
}

void MoeLayer::backward_weight(LayerContext& ctx, const TensorView& dy, const Saved& saved, GradientSink& sink) const {
  weight_gradients(ctx, saved_routing(ctx, saved), dy, saved.tensors[kInner], saved.tensors[kDgateUp],
                   saved.tensors[kDlogits], normed_again(ctx, saved), sink);
}

void MoeLayer::weight_gradients(LayerContext& ctx, const Routing& routing, const TensorView& dy,
                                const TensorView& inner, const TensorView& dgate_up, const TensorView& dlogits,
                                const TensorView& normed, GradientSink& sink) const {
  TensorView buffer;
  const auto add = [&](int param, const TensorView& weights, const TensorView& of, const auto& a, const auto& b) {
    const GradientTarget target = sink.target(param);
    if (target.view.empty()) return;
    if (buffer.empty()) buffer = ctx.temp(ctx.dtype(), {routing.exchange.rows, config_.width});
    const TensorView rows = dispatch(ctx, routing, of, weights, buffer);
    grouped(ctx,
            ops::GroupedWeightGradient{
                .a = a(rows),
                .b = b(rows),
                .c = by_expert(target.view, config_.local_experts()),
                .offsets = routing.exchange.expert_offsets,
                .accumulate = target.accumulate,
                .flops = 2.0 * static_cast<double>(routing.weights.elements() * target.view.elements() /
                                                   config_.local_experts())},
            ops::grouped_weight_gradient);
  };
  const auto same = [](const TensorView& rows) { return rows; };
  add(kExpertDown, routing.weights, dy, same, [&](const TensorView&) { return inner; });
  add(
      kExpertGateUp, {}, normed, [&](const TensorView&) { return dgate_up; }, same);
  if (ctx.trainable()(kRouterWeight)) router_.weight_gradient(ctx, dlogits, widened(ctx, normed), sink);
}

double MoeLayer::flops(std::int64_t rows, double) const {
  const MoeConfig& c = config_;
  const double of_experts = static_cast<double>(c.top_k) * static_cast<double>(c.up_size() + c.inner);
  return 2.0 * static_cast<double>(rows * c.width) * (of_experts + static_cast<double>(c.experts));
}

}  // namespace hawser::nn
