// Shapes: T rows, C width, E experts, L of this rank, K experts per token, F inner width, R and S rows
// (nn::TokenExchange).
#include "nn/blocks/moe_layer.h"

#include "nn/blocks/expert_gemms.h"
#include "ops/copy/copy.h"
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
  HAWSER_CHECK(c.experts % c.experts_shard.count == 0, c.router, ": ", c.experts, " experts on ", c.experts_shard.count,
               " ranks");
  const std::int64_t local = c.local_experts(), first = c.experts_shard.index * local;
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
  // Other experts are another parameter.
  const std::string names = name_of_experts(c.up),
                    experts = c.experts_shard.count == 1 ? names : cat(names, '.', first, '-', first + local - 1);
  params.push_back(fused_param(experts + ".gate_up.weight", std::move(gate_up), {local * c.up_size(), c.width},
                               {Initial::Kind::normal, c.initial_std}, true));
  params.push_back(fused_param(experts + ".down.weight", std::move(down), {local * c.width, c.inner},
                               {Initial::Kind::normal, c.output_std}, true));
  for (const int param : {kExpertGateUp, kExpertDown}) {
    params[static_cast<std::size_t>(param)].flat.domain = Domain::expert;
    params[static_cast<std::size_t>(param)].of_residual_rows = true;
    params[static_cast<std::size_t>(param)].of_linear = true;
    params[static_cast<std::size_t>(param)].experts = c.experts;
    params[static_cast<std::size_t>(param)].matrices = local;
  }
  params[kExpertGateUp].modules = is_gated(c.activation) ? std::vector{c.gate, c.up} : std::vector{c.up};
  params[kExpertDown].modules = {c.down};
  if (c.norm_config.bias) {
    params.push_back(norm_bias(c.norm, c.width));
    params.back().shared = c.shared_norm;
  }
  return params;
}

using Weights = TokenExchange::Weights;

constexpr Site kUp = Site::up_projection, kDown = Site::down_projection;

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
      router_{.weight = kRouterWeight, .sliced = false} {
  HAWSER_CHECK(loss_ != nullptr && loss_->config() == config_.loss(), config_.router, ": the loss of another router");
}

std::vector<int> MoeLayer::linear_weights(Site site) const {
  if (site == kUp) return {kExpertGateUp};
  if (site == kDown) return {kExpertDown};
  return {};
}

TokenExchange::Sizes MoeLayer::sizes(std::int64_t rows, const Seams& seams) const {
  TokenExchange::Sizes sizes{
      .tokens = rows, .per_token = config_.top_k, .experts = config_.experts, .local_experts = config_.local_experts()};
  if (!exchanged()) return sizes;
  sizes.row_bound = seams.expert_row_bound;
  sizes.options = seams.tokens->options(sizes);
  HAWSER_CHECK(sizes.local_experts % sizes.options.pieces == 0, config_.router, ": ", sizes.local_experts,
               " experts in ", sizes.options.pieces, " pieces");
  return sizes;
}

std::array<TensorSpec, MoeLayer::kSavedCount> MoeLayer::tensors(const RowCounts& counts, DType dtype,
                                                                const Seams& seams) const {
  const MoeConfig& c = config_;
  const std::int64_t rows = counts.residual;
  const TokenExchange::Sizes s = sizes(rows, seams);
  const auto exchanged = [&](const Shape& shape) { return c.experts_shard.count == 1 ? Shape() : shape; };
  return {{{"norm_statistics", DType::f32, norm_.statistics(rows)},
           {"normed", dtype, {rows, c.width}},
           {"router_logits", DType::f32, {rows, c.experts}},
           {"experts", DType::i32, {rows, c.top_k}},
           {"expert_weights", DType::f32, {rows, c.top_k}},
           {"expert_offsets", DType::i32, {c.experts + 1}},
           {"expert_rows", DType::i32, {rows, c.top_k}},
           {"expert_assignments", DType::i32, {s.rows()}},
           {"gate_up", dtype, {s.expert_rows(), c.up_size()}},
           {"inner", dtype, {s.expert_rows(), c.inner}},
           {"dgate_up", dtype, {s.expert_rows(), c.up_size()}},
           {"drouter_logits", DType::f32, {rows, c.experts}},
           {"exchanged_counts", DType::i32, exchanged({2, c.experts})},
           {"exchanged_offsets", DType::i32, exchanged({s.options.pieces, s.piece_experts() + 1})},
           {"exchanged_rows", DType::i32, exchanged({s.expert_rows(), 1})},
           {"exchange_state", DType::i32, s.options.state > 0 ? exchanged({s.options.state}) : Shape()}}};
}

std::vector<SavedSpec> MoeLayer::saved_specs(const RowCounts& rows, DType dtype, const SavePolicy& policy,
                                             const TrainableParams& trainable, const Seams& seams) const {
  const auto all = tensors(rows, dtype, seams);
  for (const Site site : {kUp, kDown}) {
    const LinearFormat format = policy.format(site);
    HAWSER_CHECK(!sizes(rows.residual, seams).options.quantized_rows || format == LinearFormat::compute ||
                     format == LinearFormat::fp8_delayed,
                 config_.router, ": rows of tokens are sent in FP8 with delayed scaling only");
  }
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
          saved_spec(all[kTokenRows], Pass::forward, Pass::backward),
          saved_spec(all[kExchangeState], Pass::forward, last_reader(policy, gate_up || down))};
}

bool MoeLayer::reads_normed(const TrainableParams& trainable) {
  return trainable(kExpertGateUp) || trainable(kRouterWeight);
}

TensorView MoeLayer::normed_again(LayerContext& ctx, const Saved& saved) const {
  if (!reads_normed(ctx.trainable())) return {};
  return norm_.again(ctx, saved.x, saved.tensors[kStatistics], saved.tensors[kNormed]);
}

TensorView MoeLayer::saved_or_temp(LayerContext& ctx, const Saved& saved, SavedIndex index) const {
  return nn::saved_or_temp(ctx, saved, index, tensors(ctx.rows(), ctx.dtype(), ctx.seams())[index]);
}

template <class View>
MoeLayer::Routing MoeLayer::routing_of(LayerContext& ctx, const View& view) const {
  Routing r;
  TokenExchange::Routing& x = r.exchange;
  x.sizes = sizes(ctx.rows().residual, ctx.seams());
  r.logits = view(kLogits);
  x.experts = view(kExperts);
  x.weights = view(kWeights);
  x.offsets = x.expert_offsets = view(kOffsets);
  x.rows = view(kRows);
  x.assignments = view(kAssignments);
  if (config_.experts_shard.count > 1) {
    x.counts = view(kCounts);
    x.expert_offsets = view(kExpertOffsets);
    x.token_rows = view(kTokenRows);
    if (x.sizes.options.state > 0) x.state = view(kExchangeState);
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
                                    .experts = r.exchange.experts,
                                    .weights = r.exchange.weights,
                                    .normalise = config_.normalise_top_k});
  ops::expert_plan(ctx.compute(), {.experts = r.exchange.experts,
                                   .offsets = r.exchange.offsets,
                                   .rows = r.exchange.rows,
                                   .assignments = r.exchange.assignments});
  ctx.seams().tokens->route(ctx, r.exchange);
  if (const TensorView statistics = ctx.auxiliary().statistics; !statistics.empty()) {
    const std::int64_t bytes = ops::router_statistics_workspace(normed.size(0), config_.experts);
    ops::router_statistics(ctx.compute(), {.logits = r.logits,
                                           .experts = r.exchange.experts,
                                           .statistics = statistics,
                                           .workspace = ctx.workspace(bytes)});
  }
  return r;
}

// The activation of a piece's rows as down reads them. `inner`: where they are saved; empty: they are not.
Scaled MoeLayer::write_inner(LayerContext& ctx, const Routing& routing, int piece, const TensorView& gate_up,
                             const TensorView& inner) const {
  const ExpertGemms experts(ctx, routing.exchange);
  const Shape shape{gate_up.size(0), config_.inner};
  if (inner.empty() && is_gated(config_.activation)) {
    if (const auto output = experts.output(piece, kDown, Operand::x, shape, Linear::ReadBy::product)) {
      activate(ctx, config_.activation, gate_up, {}, *output);
      return scaled_of(*output);
    }
  }
  const TensorView rows = inner.empty() ? ctx.temp(ctx.dtype(), shape) : inner;
  activate(ctx, config_.activation, gate_up, rows);
  return experts.quantized(piece, kDown, Operand::x, rows, Linear::ReadBy::product);
}

void MoeLayer::forward(LayerContext& ctx, const TensorView& x, const TensorView& residual, const TensorView& y,
                       const Saved& saved) const {
  const TensorView statistics = saved_or_temp(ctx, saved, kStatistics), normed = saved_or_temp(ctx, saved, kNormed);
  norm_.forward(ctx, x, normed, statistics);
  const Routing routing = route(ctx, normed, saved);
  const TokenExchange::Routing& exchange = routing.exchange;
  TokenExchange& seam = *ctx.seams().tokens;
  const ExpertGemms experts(ctx, exchange);
  const Scaled sent = experts.sent(kUp, Operand::x, normed, Linear::ReadBy::product);
  const auto arriving = seam.dispatch(ctx, exchange, sent.view, Weights::none);
  const auto returning = seam.combine(ctx, exchange, ctx.dtype(), config_.width, Weights::applied);
  const TensorView gate_up = saved_or_temp(ctx, saved, kGateUp), &inner = saved.tensors[kInner];
  for (int p = 0; p < exchange.sizes.options.pieces; ++p) {
    const TensorView rows = exchange.piece_rows(gate_up, p);
    experts.multiply(p, kExpertGateUp,
                     experts.arrived(p, kUp, Operand::x, sent, arriving->wait(p).rows, Linear::ReadBy::product), rows,
                     false);
    const Scaled inner_rows = write_inner(ctx, routing, p, rows, inner.empty() ? inner : exchange.piece_rows(inner, p));
    experts.multiply(p, kExpertDown, inner_rows, returning->target(p).rows, false);
    returning->written(p);
  }
  returning->finish(residual, y);
}

void MoeLayer::recompute(LayerContext& ctx, const Saved& saved, const TensorView& y, const SavePolicy&) const {
  HAWSER_CHECK(y.empty(), "the output of experts is not recomputed");
  const TensorView normed = saved_or_temp(ctx, saved, kNormed);
  norm_.forward(ctx, saved.x, normed, saved_or_temp(ctx, saved, kStatistics));
  const Routing routing = saved_routing(ctx, saved);
  const TensorView gate_up = saved_or_temp(ctx, saved, kGateUp);
  const ExpertGemms experts(ctx, routing.exchange);
  const Scaled sent = experts.sent(kUp, Operand::x, normed, Linear::ReadBy::product);
  const auto arriving = ctx.seams().tokens->dispatch(ctx, routing.exchange, sent.view, Weights::none);
  for (int p = 0; p < routing.exchange.sizes.options.pieces; ++p) {
    const Scaled x = experts.arrived(p, kUp, Operand::x, sent, arriving->wait(p).rows, Linear::ReadBy::product);
    experts.multiply(p, kExpertGateUp, x, routing.exchange.piece_rows(gate_up, p), false);
  }
}

MoeLayer::Backward MoeLayer::start_backward(LayerContext& ctx, const Saved& saved, const TensorView& dy) const {
  TokenExchange& seam = *ctx.seams().tokens;
  Backward b{.routing = saved_routing(ctx, saved), .gate_up = saved.tensors[kGateUp]};
  const Weights weights = exchanged() ? Weights::sent : Weights::none;
  b.sent = ExpertGemms(ctx, b.routing.exchange).sent(kDown, Operand::dy, dy, Linear::ReadBy::product);
  b.arriving = seam.dispatch(ctx, b.routing.exchange, b.sent.view, weights);
  b.returning = seam.combine(ctx, b.routing.exchange, ctx.dtype(), config_.width, weights);
  b.dinner = ctx.temp(ctx.dtype(), {b.gate_up.size(0), config_.inner});
  b.inner = saved_or_temp(ctx, saved, kInner);
  // Without delayed weight gradients gate and up have no later reader: their gradient overwrites them.
  b.dgate_up = saved.tensors[kDgateUp].empty() ? b.gate_up : saved.tensors[kDgateUp];
  b.read_dgate_up.resize(static_cast<std::size_t>(b.routing.exchange.sizes.options.pieces));
  b.dweights = ctx.temp(DType::f32, b.routing.exchange.weights.shape());
  return b;
}

// The gradient of each expert's output is without its weight, so that the weight's gradient is a dot product of rows of
// `inner`: the rows of the output are not needed.
void MoeLayer::backward_piece(LayerContext& ctx, Backward& b, int piece, const SavePolicy& policy) const {
  const TokenExchange::Routing& exchange = b.routing.exchange;
  const auto of_piece = [&](const TensorView& view) { return exchange.piece_rows(view, piece); };
  const TensorView gate_up = of_piece(b.gate_up), inner = of_piece(b.inner), dinner = of_piece(b.dinner);
  const TokenExchange::PieceRows arrived = b.arriving->wait(piece);
  const ExpertGemms experts(ctx, exchange);
  experts.multiply(piece, kExpertDown,
                   experts.arrived(piece, kDown, Operand::dy, b.sent, arrived.rows, Linear::ReadBy::product), dinner,
                   true);
  if (policy.recomputes_pointwise()) activate(ctx, config_.activation, gate_up, inner);
  ops::WeightedRowsBackward weighted{
      .x = inner, .dx = dinner, .rows = exchange.rows, .weights = exchange.weights, .dweights = b.dweights};
  TokenExchange::PieceRows target;
  if (exchanged()) {
    target = b.returning->target(piece);
    weighted.rows = of_piece(exchange.token_rows);
    weighted.weights = arrived.weights;
    weighted.dweights = target.weights;
  }
  ops::weighted_rows_backward(ctx.compute(), weighted);
  b.read_dgate_up[static_cast<std::size_t>(piece)] =
      write_dgate_up(ctx, b.routing, piece, gate_up, dinner, of_piece(b.dgate_up), policy);
  if (exchanged()) return_piece(ctx, b, piece, target.rows);
}

// As both GEMMs read it; delayed gradients of weights read what is saved.
Scaled MoeLayer::write_dgate_up(LayerContext& ctx, const Routing& routing, int piece, const TensorView& gate_up,
                                const TensorView& dinner, const TensorView& dgate_up, const SavePolicy& policy) const {
  const ExpertGemms experts(ctx, routing.exchange);
  const bool weights = !policy.delay_weight_gradients && ctx.trainable()(kExpertGateUp);
  const auto reader = weights ? Linear::ReadBy::both : Linear::ReadBy::product;
  if (!policy.delay_weight_gradients && is_gated(config_.activation)) {
    if (const auto output = experts.output(piece, kUp, Operand::dy, gate_up.shape(), reader)) {
      activate_backward_fp8(ctx, config_.activation, gate_up, dinner, *output, {});
      return scaled_of(*output);
    }
  }
  activate_backward(ctx, config_.activation, gate_up, dinner, dgate_up, {});
  return experts.quantized(piece, kUp, Operand::dy, dgate_up, reader);
}

void MoeLayer::return_piece(LayerContext& ctx, const Backward& b, int piece, const TensorView& drows) const {
  ExpertGemms(ctx, b.routing.exchange)
      .multiply(piece, kExpertGateUp, b.read_dgate_up[static_cast<std::size_t>(piece)], drows, true);
  b.returning->written(piece);
}

// On one rank, the gradients of the experts' weights come before the rows' gradients, whose buffers they would keep
// alive; on several, they run while these are returned.
void MoeLayer::backward(LayerContext& ctx, const TensorView& dy, const TensorView& dresidual, const TensorView& dx,
                        const Saved& saved, GradientSink& sink, const SavePolicy& policy) const {
  Backward b = start_backward(ctx, saved, dy);
  const Routing& routing = b.routing;
  for (int p = 0; p < routing.exchange.sizes.options.pieces; ++p) backward_piece(ctx, b, p, policy);
  TensorView normed;
  const auto expert_gradients_now = [&] {
    if (policy.delay_weight_gradients) return;
    normed = normed_again(ctx, saved);
    expert_gradients(
        ctx, routing, dy, b.inner, [&](int p) { return b.read_dgate_up[static_cast<std::size_t>(p)]; }, normed, sink);
  };
  if (exchanged()) {
    expert_gradients_now();
    b.returning->finish_weights(b.dweights);
  }
  const TensorView dlogits = saved_or_temp(ctx, saved, kDlogits);
  ops::router_top_k_backward(ctx.compute(), {.logits = routing.logits,
                                             .experts = routing.exchange.experts,
                                             .weights = routing.exchange.weights,
                                             .dweights = b.dweights,
                                             .factors = ctx.auxiliary().factors,
                                             .dlogits = dlogits,
                                             .normalise = config_.normalise_top_k});
  if (!exchanged()) expert_gradients_now();
  if (!policy.delay_weight_gradients) router_gradient(ctx, dlogits, normed, sink);
  if (!exchanged()) return_piece(ctx, b, 0, b.returning->target(0).rows);
  const std::int64_t rows = saved.x.size(0);
  const TensorView through_router = ctx.temp(DType::f32, {rows, config_.width});
  router_.input_gradient(ctx, dlogits, through_router);
  const TensorView dnormed = ctx.temp(ctx.dtype(), {rows, config_.width});
  b.returning->finish(through_router, dnormed);
  norm_.backward(ctx, saved.x, saved.tensors[kStatistics], dnormed, dresidual, dx, sink);
}

void MoeLayer::backward_weight(LayerContext& ctx, const TensorView& dy, const Saved& saved, GradientSink& sink) const {
  const TensorView normed = normed_again(ctx, saved);
  const Routing routing = saved_routing(ctx, saved);
  const auto dgate_up = [&](int p) {
    return ExpertGemms(ctx, routing.exchange)
        .quantized(p, kUp, Operand::dy, routing.exchange.piece_rows(saved.tensors[kDgateUp], p),
                   Linear::ReadBy::weight_gradient);
  };
  expert_gradients(ctx, routing, dy, saved.tensors[kInner], dgate_up, normed, sink);
  router_gradient(ctx, saved.tensors[kDlogits], normed, sink);
}

void MoeLayer::expert_gradients(LayerContext& ctx, const Routing& routing, const TensorView& dy,
                                const TensorView& inner, const std::function<Scaled(int)>& dgate_up,
                                const TensorView& normed, GradientSink& sink) const {
  const TokenExchange::Routing& exchange = routing.exchange;
  const ExpertGemms experts(ctx, exchange);
  const auto by = Linear::ReadBy::weight_gradient;
  // The gradient of `param` from rows of what `send` returns and what `add_piece` has of the experts' rows.
  const auto add = [&](int param, const auto& send, Weights weights, const auto& add_piece) {
    const GradientTarget target = sink.target(param);
    if (target.view.empty()) return;
    const Scaled sent = send();
    const auto arriving = ctx.seams().tokens->dispatch(ctx, exchange, sent.view, weights);
    const TensorView gradient = by_expert(target.view, config_.local_experts());
    for (int p = 0; p < exchange.sizes.options.pieces; ++p) {
      add_piece(p, sent, arriving->wait(p).rows, gradient, target.accumulate);
    }
  };
  // Weights of tokens are at most 1: the scale of dy is that of weighted rows, too. They are rounded after that.
  add(
      kExpertDown, [&] { return Scaled(dy); }, Weights::applied,
      [&](int p, const Scaled&, const TensorView& rows, const TensorView& to, bool accumulate) {
        const Scaled weighted = experts.quantized(p, kDown, Operand::dy, rows, by);
        const Scaled x = experts.quantized(p, kDown, Operand::x, exchange.piece_rows(inner, p), by);
        experts.weight_gradient(p, weighted, x, to, accumulate);
      });
  add(
      kExpertGateUp, [&] { return experts.sent(kUp, Operand::x, normed, by); }, Weights::none,
      [&](int p, const Scaled& sent, const TensorView& rows, const TensorView& to, bool accumulate) {
        experts.weight_gradient(p, dgate_up(p), experts.arrived(p, kUp, Operand::x, sent, rows, by), to, accumulate);
      });
}

void MoeLayer::router_gradient(LayerContext& ctx, const TensorView& dlogits, const TensorView& normed,
                               GradientSink& sink) const {
  if (ctx.trainable()(kRouterWeight)) router_.weight_gradient(ctx, dlogits, widened(ctx, normed), sink);
}

double MoeLayer::flops(const RowCounts& rows, double) const {
  const MoeConfig& c = config_;
  const double of_experts = static_cast<double>(c.top_k) * static_cast<double>(c.up_size() + c.inner);
  return 2.0 * static_cast<double>(rows.residual * c.width) * (of_experts + static_cast<double>(c.experts));
}

}  // namespace hawser::nn
