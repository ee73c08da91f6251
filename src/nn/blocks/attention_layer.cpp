// Shapes: T rows, C width, H query heads, K key-value heads, D head dim.
#include "nn/blocks/attention_layer.h"

#include <cmath>

#include "nn/blocks/block_support.h"
#include "ops/attention/attention.h"
#include "ops/norm/rms_norm.h"
#include "ops/rope/rope.h"

namespace hawser::nn {

namespace {

enum AttentionParameter { kNorm, kQkvWeight, kOutputWeight };

// Diagonal blocks do not apply to a call without a causal mask: keys after a sequence's end would be visible.
std::vector<ops::StridedBlocks> blocks_of(const AttentionPart& part, bool causal) {
  return part.causal && !causal ? std::vector<ops::StridedBlocks>() : part.blocks;
}

// A call's workspace, of the same size on all ranks.
template <class Call>
TensorView workspace_of(LayerContext& ctx, Call call, const AttentionPart& part) {
  if (!part.largest.empty()) call.blocks = part.largest;
  const std::int64_t bytes = ops::attention_workspace(call, ctx.compute().target(), ctx.threads());
  return bytes > 0 ? ctx.temp(DType::u8, {bytes}) : TensorView();
}

}  // namespace

AttentionLayer::AttentionLayer(AttentionConfig config) : config_(std::move(config)) {
  const AttentionConfig& c = config_;
  HAWSER_CHECK(c.kv_heads > 0 && c.heads % c.kv_heads == 0, c.heads, " heads in groups of ", c.kv_heads);
  const auto qkv_slices = [&](const char* suffix) {
    return std::vector<FusedSlice>{{c.q + suffix, 0, c.q_size()},
                                   {c.k + suffix, c.q_size(), c.kv_size()},
                                   {c.v + suffix, c.q_size() + c.kv_size(), c.kv_size()}};
  };
  const Initial normal{Initial::Kind::normal, c.initial_std};
  params_.push_back(full_param(c.norm + ".weight", {c.width}, {Initial::Kind::ones, 0}, false));
  params_.push_back(fused_param(c.fused + ".weight", qkv_slices(".weight"), {c.qkv_size(), c.width}, normal, true));
  params_.push_back(
      full_param(c.output + ".weight", {c.width, c.q_size()}, {Initial::Kind::normal, c.output_std}, true));
  if (c.qkv_bias) {
    qkv_bias_ = static_cast<int>(params_.size());
    params_.push_back(fused_param(c.fused + ".bias", qkv_slices(".bias"), {c.qkv_size()}, {}, false));
  }
  if (c.output_bias) {
    output_bias_ = static_cast<int>(params_.size());
    params_.push_back(full_param(c.output + ".bias", {c.width}, {}, false));
  }
}

std::vector<SavedSpec> AttentionLayer::saved_specs(std::int64_t rows, DType dtype, const SavePolicy& policy) const {
  const AttentionConfig& c = config_;
  const bool again = policy.recomputes_qkv();
  const Pass attention_writer = policy.recomputes_attention() ? Pass::recompute : Pass::forward;
  const Pass weight_reader = policy.delay_weight_gradients ? Pass::backward_weight : Pass::backward;
  std::vector<SavedSpec> specs(kSavedCount, unsaved_spec(""));
  specs[kRstd] = rstd_spec(policy, again, rows);
  specs[kNormed] = normed_spec(policy, again, dtype, {rows, c.width});
  specs[kQkv] = saved_spec("qkv", dtype, {rows, c.qkv_size()}, again ? Pass::recompute : Pass::forward, Pass::backward);
  specs[kOut] = saved_spec("attention", dtype, {rows, c.q_size()}, attention_writer, weight_reader);
  specs[kLse] = saved_spec("log_sum_exp", DType::f32, {c.heads, rows}, attention_writer, Pass::backward);
  specs[kDqkv] = policy.delay_weight_gradients
                     ? saved_spec("dqkv", dtype, {rows, c.qkv_size()}, Pass::backward, Pass::backward_weight)
                     : unsaved_spec("dqkv");
  return specs;
}

TensorView AttentionLayer::saved_or_temp(LayerContext& ctx, const Saved& saved, SavedIndex index) const {
  if (!saved.tensors[index].empty()) return saved.tensors[index];
  const std::int64_t rows = saved.x.size(0);
  switch (index) {
    case kRstd:
      return ctx.temp(DType::f32, {rows});
    case kNormed:
      return ctx.temp(ctx.dtype(), {rows, config_.width});
    case kQkv:
    case kDqkv:
      return ctx.temp(ctx.dtype(), {rows, config_.qkv_size()});
    case kOut:
      return ctx.temp(ctx.dtype(), {rows, config_.q_size()});
    case kLse:
      return ctx.temp(DType::f32, {config_.heads, rows});
    case kSavedCount:
      break;
  }
  HAWSER_CHECK(false, "no such saved tensor");
}

AttentionLayer::Heads AttentionLayer::heads_of(const TensorView& qkv) const {
  const AttentionConfig& c = config_;
  return {qkv.columns(0, c.q_size()).split_last(c.heads, c.head_dim),
          qkv.columns(c.q_size(), c.kv_size()).split_last(c.kv_heads, c.head_dim),
          qkv.columns(c.q_size() + c.kv_size(), c.kv_size()).split_last(c.kv_heads, c.head_dim)};
}

void AttentionLayer::norm(LayerContext& ctx, const TensorView& x, const TensorView& normed,
                          const TensorView& rstd) const {
  ops::rms_norm_forward(ctx.compute(),
                        {.x = x, .weight = ctx.weight(kNorm), .y = normed, .rstd = rstd, .epsilon = config_.epsilon});
}

void AttentionLayer::project(LayerContext& ctx, const TensorView& normed, const TensorView& qkv) const {
  gemm(ctx, {.a = normed,
             .b = ctx.weight(kQkvWeight),
             .c = qkv,
             .transpose_b = true,
             .bias = qkv_bias_ >= 0 ? ctx.weight(qkv_bias_) : TensorView()});
  if (!config_.rope) return;
  const Heads heads = heads_of(qkv);
  for (const TensorView& x : {heads.q, heads.k}) {
    ops::rope(ctx.compute(), {.x = x,
                              .positions = ctx.batch().positions,
                              .frequencies = ctx.rope_frequencies(),
                              .scale = config_.rope_scale});
  }
}

void AttentionLayer::attend(LayerContext& ctx, const TensorView& qkv, const TensorView& o,
                            const TensorView& lse) const {
  const AttentionConfig& c = config_;
  const Heads heads = heads_of(qkv);
  const std::int64_t rows = qkv.size(0), group = c.heads / c.kv_heads;
  const auto seam_call = ctx.seams().attention->forward(ctx, heads.k, heads.v);
  for (int p = 0; p < seam_call->parts(); ++p) {
    const AttentionPart part = seam_call->wait(p);
    const std::int64_t head = part.head_begin * group, count = part.heads * group;
    const TensorView o_part = o.columns(head * c.head_dim, count * c.head_dim).split_last(count, c.head_dim);
    const TensorView lse_part = lse.rows(head, count);
    ops::AttentionForward call{.q = qkv.columns(head * c.head_dim, count * c.head_dim).split_last(count, c.head_dim),
                               .k = part.k,
                               .v = part.v,
                               .segments = part.segments,
                               .segment_count = part.segment_count,
                               .form = part.form,
                               .blocks = blocks_of(part, c.causal),
                               .host_segments = part.host_segments,
                               .causal = part.causal && c.causal,
                               .window = c.window,
                               .scale = 1.0 / std::sqrt(static_cast<double>(c.head_dim)),
                               .o = o_part,
                               .lse = lse_part,
                               .flops = 4.0 * static_cast<double>(count * c.head_dim) * part.visible};
    if (!part.first) {
      call.o = ctx.temp(ctx.dtype(), {rows, count, c.head_dim});
      call.lse = ctx.temp(DType::f32, {count, rows});
    }
    call.workspace = workspace_of(ctx, call, part);
    ops::attention_forward(ctx.compute(), call);
    if (!part.first) {
      ops::attention_combine(ctx.compute(), {.o_a = o_part, .lse_a = lse_part, .o_b = call.o, .lse_b = call.lse});
    }
  }
  seam_call->finish();
}

void AttentionLayer::attend_backward(LayerContext& ctx, AttentionExchange::Call& seam_call, const TensorView& qkv,
                                     const TensorView& o, const TensorView& lse, const TensorView& d_o,
                                     const TensorView& dqkv) const {
  const AttentionConfig& c = config_;
  const std::int64_t group = c.heads / c.kv_heads;
  for (int p = 0; p < seam_call.parts(); ++p) {
    const AttentionPart part = seam_call.wait(p);
    const std::int64_t head = part.head_begin * group, count = part.heads * group;
    const auto columns = [&](const TensorView& view) {
      return view.columns(head * c.head_dim, count * c.head_dim).split_last(count, c.head_dim);
    };
    ops::AttentionBackward call{.q = columns(qkv),
                                .k = part.k,
                                .v = part.v,
                                .o = columns(o),
                                .d_o = columns(d_o),
                                .lse = lse.rows(head, count),
                                .segments = part.segments,
                                .segment_count = part.segment_count,
                                .form = part.form,
                                .blocks = blocks_of(part, c.causal),
                                .host_segments = part.host_segments,
                                .causal = part.causal && c.causal,
                                .window = c.window,
                                .scale = 1.0 / std::sqrt(static_cast<double>(c.head_dim)),
                                .dq = columns(dqkv),
                                .dk = part.dk,
                                .dv = part.dv,
                                .accumulate_q = !part.first,
                                .deterministic = ctx.deterministic(),
                                .flops = 10.0 * static_cast<double>(count * c.head_dim) * part.visible};
    call.workspace = workspace_of(ctx, call, part);
    ops::attention_backward(ctx.compute(), call);
    seam_call.add_gradient(p);
  }
}

void AttentionLayer::rope_backward(LayerContext& ctx, const TensorView& gradient) const {
  if (!config_.rope) return;
  ops::rope(ctx.compute(), {.x = gradient,
                            .positions = ctx.batch().positions,
                            .frequencies = ctx.rope_frequencies(),
                            .scale = config_.rope_scale,
                            .inverse = true});
}

void AttentionLayer::output_weight_gradient(LayerContext& ctx, const TensorView& dy, const TensorView& o,
                                            GradientSink& sink) const {
  linear_weight_gradient(ctx, dy, o, sink, kOutputWeight, output_bias_);
}

void AttentionLayer::qkv_weight_gradient(LayerContext& ctx, const TensorView& dqkv, const TensorView& normed,
                                         GradientSink& sink) const {
  // The GEMM's input in forward: redistributed, if a seam gathers the rows.
  linear_weight_gradient(ctx, dqkv, ctx.seams().redistribute->forward(ctx, Boundary::column_input, normed), sink,
                         kQkvWeight, qkv_bias_);
}

void AttentionLayer::forward(LayerContext& ctx, const TensorView& x, const TensorView& y, const Saved& saved) const {
  const TensorView rstd = saved_or_temp(ctx, saved, kRstd), normed = saved_or_temp(ctx, saved, kNormed);
  norm(ctx, x, normed, rstd);
  const TensorView qkv = saved_or_temp(ctx, saved, kQkv);
  project(ctx, ctx.seams().redistribute->forward(ctx, Boundary::column_input, normed), qkv);
  const TensorView o = saved_or_temp(ctx, saved, kOut), lse = saved_or_temp(ctx, saved, kLse);
  attend(ctx, qkv, o, lse);
  gemm(ctx, {.a = o, .b = ctx.weight(kOutputWeight), .c = y, .transpose_b = true});
  add_residual(ctx, x, ctx.seams().redistribute->forward(ctx, Boundary::row_output, y),
               output_bias_ >= 0 ? ctx.weight(output_bias_) : TensorView());
}

void AttentionLayer::recompute(LayerContext& ctx, const Saved& saved, const SavePolicy& policy) const {
  const TensorView rstd = saved_or_temp(ctx, saved, kRstd), normed = saved_or_temp(ctx, saved, kNormed),
                   qkv = saved_or_temp(ctx, saved, kQkv);
  norm(ctx, saved.x, normed, rstd);
  project(ctx, ctx.seams().redistribute->forward(ctx, Boundary::column_input, normed), qkv);
  if (policy.recomputes_attention()) attend(ctx, qkv, saved_or_temp(ctx, saved, kOut), saved_or_temp(ctx, saved, kLse));
}

void AttentionLayer::backward(LayerContext& ctx, const TensorView& dy, const TensorView& dx, const Saved& saved,
                              GradientSink& sink, const SavePolicy& policy) const {
  const std::int64_t rows = saved.x.size(0);
  const TensorView o = saved.tensors[kOut], rstd = saved.tensors[kRstd];
  const TensorView qkv = saved.tensors[kQkv], dqkv = saved_or_temp(ctx, saved, kDqkv);
  const Heads heads = heads_of(qkv), gradients = heads_of(dqkv);
  // Keys of other ranks arrive while d_o is computed; their gradients are reduced during the output weight's gradient.
  const auto seam_call = ctx.seams().attention->backward(ctx, heads.k, heads.v, gradients.k, gradients.v);
  const TensorView dz = ctx.seams().redistribute->backward(ctx, Boundary::row_output, dy);
  const TensorView d_o = ctx.temp(ctx.dtype(), {rows, config_.q_size()});
  gemm(ctx, {.a = dz, .b = ctx.weight(kOutputWeight), .c = d_o});
  attend_backward(ctx, *seam_call, qkv, o, saved.tensors[kLse], d_o, dqkv);
  if (!policy.delay_weight_gradients) output_weight_gradient(ctx, dz, o, sink);
  rope_backward(ctx, gradients.q);
  seam_call->finish();
  rope_backward(ctx, gradients.k);
  if (!policy.delay_weight_gradients) {
    TensorView normed = saved.tensors[kNormed];
    if (normed.empty()) {
      normed = ctx.temp(ctx.dtype(), {rows, config_.width});
      norm(ctx, saved.x, normed, rstd);
    }
    qkv_weight_gradient(ctx, dqkv, normed, sink);
  }
  const TensorView dnormed = ctx.temp(ctx.dtype(), {rows, config_.width});
  gemm(ctx, {.a = dqkv, .b = ctx.weight(kQkvWeight), .c = dnormed});
  rms_norm_gradient(ctx, saved.x, ctx.weight(kNorm), rstd,
                    ctx.seams().redistribute->backward(ctx, Boundary::column_input, dnormed), dy, dx,
                    sink.target(kNorm));
}

void AttentionLayer::backward_weight(LayerContext& ctx, const TensorView& dy, const Saved& saved,
                                     GradientSink& sink) const {
  output_weight_gradient(ctx, ctx.seams().redistribute->backward(ctx, Boundary::row_output, dy), saved.tensors[kOut],
                         sink);
  TensorView normed = saved.tensors[kNormed];
  if (normed.empty()) {
    normed = ctx.temp(ctx.dtype(), {saved.x.size(0), config_.width});
    norm(ctx, saved.x, normed, saved.tensors[kRstd]);
  }
  qkv_weight_gradient(ctx, saved.tensors[kDqkv], normed, sink);
}

double AttentionLayer::flops(std::int64_t rows, double pairs) const {
  const AttentionConfig& c = config_;
  return 2.0 * static_cast<double>(rows * c.width) * static_cast<double>(c.qkv_size() + c.q_size()) +
         4.0 * static_cast<double>(c.q_size()) * pairs;
}

}  // namespace hawser::nn
