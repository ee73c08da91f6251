// Shapes: T rows, C width, H query heads, K key-value heads, D head dim. Norms and the residual have
// RowCounts::residual rows, attention RowCounts::full, and Linears Linear::rows.
#include "nn/blocks/attention_layer.h"

#include <cmath>

#include "nn/blocks/attention_parts.h"
#include "ops/attention/alibi.h"
#include "ops/attention/attention.h"
#include "ops/copy/add.h"
#include "ops/rope/rope.h"

namespace hawser::nn {

namespace {

enum AttentionParameter { kNorm, kQkvWeight, kOutputWeight, kFirstBias };

DimSlice channels_of(DimSlice heads, std::int64_t head_dim) {
  return {heads.begin * head_dim, heads.total * head_dim};
}

// The tensor that q, k or v is in, the slice of its rows that this rank has, and its range if it is all three.
struct Projection {
  std::string name;
  DimSlice slice;
  std::optional<IndexRange> range = {};
};
std::array<Projection, 3> projections_of(const AttentionConfig& c) {
  const DimSlice q = channels_of(c.heads_slice, c.head_dim), kv = channels_of(c.kv_heads_slice, c.head_dim);
  if (!c.q.empty()) return {{{c.q, q}, {c.k, kv}, {c.v, kv}}};
  const std::int64_t q_rows = q.sliced() ? q.total : c.q_size(), kv_rows = kv.sliced() ? kv.total : c.kv_size();
  const std::int64_t v_row = q_rows + kv_rows, total = v_row + kv_rows;
  return {{{c.fused, {q.begin, total}, IndexRange{0, q_rows}},
           {c.fused, {q_rows + kv.begin, total}, IndexRange{q_rows, kv_rows}},
           {c.fused, {v_row + kv.begin, total}, IndexRange{v_row, kv_rows}}}};
}

Segment segment_of(const Projection& of, const char* suffix, std::int64_t row, std::int64_t rows, const Shape& shape) {
  return row_segment(of.name + suffix, row, rows, shape, of.slice, of.range);
}

std::vector<Segment> with_file_form(std::vector<Segment> segments, bool transposed,
                                    const std::vector<IndexRange>& rows) {
  for (Segment& segment : segments) segment.file = {.transposed = transposed, .row_order = rows};
  return segments;
}

// The norms of q and of k, and after the output: their first parameter follows all biases and earlier norms.
int qk_norm_index(const AttentionConfig& c) {
  return kFirstBias + c.qkv_bias + c.output_bias + c.norm_config.bias;
}
int post_norm_index(const AttentionConfig& c) {
  return qk_norm_index(c) + (c.qk_norm ? 2 : 0);
}
// The parameters of K and V that are apart follow all others but those of adapters.
int kv_index(const AttentionConfig& c) {
  const int post = c.norm_place == NormPlace::sandwich ? 1 + c.norm_config.bias : 0;
  return post_norm_index(c) + post;
}

std::optional<Norm> make_qk_norm(const AttentionConfig& c, int index) {
  if (!c.qk_norm) return {};
  HAWSER_CHECK(c.qk_norm->kind == NormKind::rms, "a layer norm of queries and keys");
  return Norm(*c.qk_norm, qk_norm_index(c) + index, -1);
}

// Elements of the smallest of q, k and v, or of the tensor that has all of them.
std::int64_t smallest_of(const AttentionConfig& c) {
  const std::int64_t q = c.heads_slice.total * c.head_dim, kv = c.kv_heads_slice.total * c.head_dim;
  return c.width * (c.q.empty() ? q + 2 * kv : std::min(q, kv));
}

// norm, QKV weight, output weight, then the biases that there are: QKV, output, norm; then the other norms; then, with
// copies of key-value heads, weight and bias of K and V, which those of QKV then have not.
std::vector<Param> attention_params(const AttentionConfig& c) {
  HAWSER_CHECK(c.kv_heads > 0 && c.heads % c.kv_heads == 0, c.heads, " heads in groups of ", c.kv_heads);
  const bool apart = c.kv_copies > 1;
  HAWSER_CHECK(c.heads_slice.sliced() == c.kv_heads_slice.sliced(), c.output, ": a part of the heads of ",
               c.heads_slice.sliced() ? "queries, but all of keys" : "keys, but all of queries");
  HAWSER_CHECK(!apart || c.heads_slice.sliced(), c.output, ": copies of key-value heads, but all heads");
  const auto [q, k, v] = projections_of(c);
  const auto qkv = [&, &q = q, &k = k, &v = v](const char* suffix, const Shape& shape, bool transposed) {
    std::vector<Segment> segments = {segment_of(q, suffix, 0, c.q_size(), shape)};
    if (!apart) {
      segments.push_back(segment_of(k, suffix, c.q_size(), c.kv_size(), shape));
      segments.push_back(segment_of(v, suffix, c.q_size() + c.kv_size(), c.kv_size(), shape));
    }
    return with_file_form(std::move(segments), transposed, c.qkv_rows);
  };
  const std::int64_t qkv_rows = apart ? c.q_size() : c.qkv_size();
  const std::string qkv_name = apart ? q.name : c.fused;
  const Shape wide{qkv_rows, c.width};
  const Initial normal{Initial::Kind::normal, c.initial_std};
  std::vector<Param> params = {norm_weight(c.norm, c.width, c.norm_config)};
  const std::vector<std::string> modules = c.q.empty() ? std::vector{c.fused} : std::vector{c.q, c.k, c.v};
  params.push_back(fused_param(qkv_name + ".weight", qkv(".weight", wide, c.transposed), wide, normal, true));
  params.back().of_linear = true;
  params.back().modules = modules;
  const std::int64_t smallest = apart ? smallest_of(c) : 0;
  params.back().smallest = smallest;
  params.push_back(sliced_param(c.output + ".weight", {c.width, c.q_size()}, 1, channels_of(c.heads_slice, c.head_dim),
                                {Initial::Kind::normal, c.output_std}, true));
  params.back().segments.edit().front().file.transposed = c.transposed;
  params.back().of_linear = true;
  if (c.qkv_bias)
    params.push_back(fused_param(qkv_name + ".bias", qkv(".bias", {qkv_rows}, false), {qkv_rows}, {}, false));
  if (c.output_bias) params.push_back(replicated_param(c.output + ".bias", {c.width}, {}));
  if (c.norm_config.bias) params.push_back(norm_bias(c.norm, c.width));
  if (c.qk_norm) {
    for (const std::string& name : {c.q_norm, c.k_norm}) {
      // A rank's heads add a part of the gradient.
      const Initial initial = norm_weight(name, c.head_dim, *c.qk_norm).initial;
      params.push_back(partial_param(name + ".weight", {c.head_dim}, initial, false));
    }
  }
  if (c.norm_place == NormPlace::sandwich) {
    params.push_back(norm_weight(c.post_norm, c.width, c.norm_config));
    if (c.norm_config.bias) params.push_back(norm_bias(c.post_norm, c.width));
  }
  const auto add_kv = [&, &k = k, &v = v](const char* suffix, const Shape& shape, const Initial& initial, bool decay) {
    std::vector<Segment> segments = {segment_of(k, suffix, 0, c.kv_size(), shape),
                                     segment_of(v, suffix, c.kv_size(), c.kv_size(), shape)};
    const std::string name = c.q.empty() ? cat(c.fused, "+kv", suffix) : cat(c.k, "+", c.v, suffix);
    params.push_back(fused_param(name, with_file_form(std::move(segments), decay && c.transposed, c.qkv_rows), shape,
                                 initial, decay));
    // Each rank's query heads add a part of the gradient.
    params.back().flat.domain = Domain::kv_copies;
    params.back().flat.partial_gradient = true;
    params.back().of_linear = decay;
    if (decay) params.back().modules = modules, params.back().smallest = smallest;
  };
  if (apart) add_kv(".weight", {2 * c.kv_size(), c.width}, normal, true);
  if (apart && c.qkv_bias) add_kv(".bias", {2 * c.kv_size()}, {}, false);
  return params;
}

}  // namespace

std::vector<float> AttentionConfig::alibi_slopes() const {
  const std::int64_t all = heads_slice.sliced() ? heads_slice.total : heads;
  const std::vector<float> of_model = ops::alibi_slopes(all);
  std::vector<float> out(static_cast<std::size_t>(heads), 0.0f);
  for (std::int64_t h = 0; h < heads && heads_slice.begin + h < all; ++h) {
    const double slope = of_model[static_cast<std::size_t>(heads_slice.begin + h)];
    out[static_cast<std::size_t>(h)] = static_cast<float>(alibi_scale * slope);
  }
  return out;
}

AttentionLayer::AttentionLayer(AttentionConfig config)
    : config_(std::move(config)),
      params_(attention_params(config_)),
      norm_(config_.norm_config, kNorm, kFirstBias + config_.qkv_bias + config_.output_bias),
      q_norm_(make_qk_norm(config_, 0)),
      k_norm_(make_qk_norm(config_, 1)),
      qkv_(make_qkv()),
      output_(make_output()) {
  if (config_.sliced) return;
  HAWSER_CHECK(config_.kv_copies == 1, config_.output, ": copies of key-value heads of a layer that is not sliced");
  std::ranges::for_each(params_, set_unsliced);
  // Every rank computes attention of all rows.
  for (int i = 0; config_.qk_norm && i < 2; ++i) {
    params_[static_cast<std::size_t>(qk_norm_index(config_) + i)].of_residual_rows = false;
  }
}

ColumnParallelLinear AttentionLayer::make_qkv() {
  const AttentionConfig& c = config_;
  const auto [q, k, v] = projections_of(c);
  const bool apart = c.kv_copies > 1;
  const std::int64_t k_row = c.q_size(), v_row = k_row + c.kv_size();
  const OutputRange of_q{0, c.q_size(), q.slice, false, q.range}, of_k{k_row, c.kv_size(), k.slice, apart, k.range},
      of_v{v_row, c.kv_size(), v.slice, apart, v.range};
  std::vector<AdapterTarget> targets;
  if (c.q.empty()) {
    targets = {{c.fused, {of_q, of_k, of_v}, c.qkv_rows}};
  } else {
    targets = {{c.q, {of_q}}, {c.k, {of_k}}, {c.v, {of_v}}};
  }
  return ColumnParallelLinear({.site = Site::qkv_projection,
                               .weight = kQkvWeight,
                               .bias = c.qkv_bias ? kFirstBias : -1,
                               .more_weight = apart ? kv_index(c) : -1,
                               .more_bias = apart && c.qkv_bias ? kv_index(c) + 1 : -1,
                               .adapters = add_adapters(c.adapters, targets, c.width, {}, params_),
                               .sliced = c.sliced});
}

LayerOutput AttentionLayer::make_output() {
  const AttentionConfig& c = config_;
  const DimSlice q = channels_of(c.heads_slice, c.head_dim);
  std::optional<Norm> post_norm;
  if (c.norm_place == NormPlace::sandwich) {
    post_norm.emplace(c.norm_config, post_norm_index(c), post_norm_index(c) + 1);
  }
  if (c.norm_place == NormPlace::post) post_norm = norm_;
  return {RowParallelLinear({.site = Site::output_projection,
                             .weight = kOutputWeight,
                             .bias = c.output_bias ? kFirstBias + c.qkv_bias : -1,
                             .adapters = add_adapters(c.adapters, {{c.output, {{0, c.width}}}}, c.q_size(), q, params_),
                             .first_input = q.begin,
                             .sliced = c.sliced}),
          c.norm_place, post_norm};
}

std::vector<int> AttentionLayer::linear_weights(Site site) const {
  std::vector<int> weights = qkv_.linear().weights_at(site);
  return weights.empty() ? output_.linear().weights_at(site) : weights;
}

bool AttentionLayer::draws_random_numbers() const {
  return config_.dropout > 0 || qkv_.linear().draws_random_numbers() || output_.linear().draws_random_numbers();
}

std::array<TensorSpec, AttentionLayer::kSavedCount> AttentionLayer::tensors(const RowCounts& rows, DType dtype) const {
  const AttentionConfig& c = config_;
  const auto output = output_.tensors(rows, c.width, dtype);
  return {{{"norm_statistics", DType::f32, norm_.statistics(rows.residual)},
           {"normed", dtype, {rows.residual, c.width}},
           {"qkv", dtype, {rows.full, c.qkv_size()}},
           {"attention", dtype, {rows.full, c.q_size()}},
           {"log_sum_exp", DType::f32, {c.heads, rows.full}},
           {"dqkv", dtype, {rows.full, c.qkv_size()}},
           output[0],
           output[1],
           output[2],
           output[3],
           adapters_tensor("qkv_adapters", qkv_.linear(), rows, dtype),
           {"normed_scale", DType::f32, {1}}}};
}

std::vector<SavedSpec> AttentionLayer::saved_specs(const RowCounts& rows, DType dtype, const SavePolicy& policy,
                                                   const TrainableParams& trainable, const Seams&) const {
  auto all = tensors(rows, dtype);
  if (saves_fp8(policy, qkv_.linear(), rows)) all[kNormed] = fp8_spec(all[kNormed]);
  const bool again = policy.recomputes_qkv();
  const Pass attention_writer = policy.recomputes_attention() ? Pass::recompute : Pass::forward;
  const bool reads_normed = qkv_.linear().reads_input(trainable);
  const bool output_again = policy.recomputes_attention();  // which the output projection reads
  const auto output = output_.saved_specs(rows, config_.width, dtype, policy, trainable, output_again);
  const bool before = norms_input();
  const SavedSpec normed = before ? normed_spec(all[kNormed], policy, again, reads_normed) : unsaved_spec(all[kNormed]);
  return {before ? statistics_spec(all[kStatistics], policy, again, reads_normed) : unsaved_spec(all[kStatistics]),
          normed,
          saved_spec(all[kQkv], again ? Pass::recompute : Pass::forward, Pass::backward),
          saved_spec(all[kOut], attention_writer, last_reader(policy, output_.linear().reads_input(trainable))),
          saved_spec(all[kLse], attention_writer, Pass::backward),
          output_gradient_spec(all[kDqkv], policy, qkv_.linear().has_gradients(trainable)),
          output[0],
          output[1],
          output[2],
          output[3],
          adapters_spec(all[kQkvAdapters], policy, again, qkv_.linear(), trainable),
          scale_spec(all[kNormedScale].name, normed, policy.format(qkv_.linear().site))};
}

TensorView AttentionLayer::saved_or_temp(LayerContext& ctx, const Saved& saved, SavedIndex index) const {
  return nn::saved_or_temp(ctx, saved, index, tensors(ctx.rows(), ctx.dtype())[index]);
}

TensorView AttentionLayer::statistics_of(LayerContext& ctx, const Saved& saved) const {
  return norms_input() ? saved_or_temp(ctx, saved, kStatistics) : TensorView();
}

AttentionLayer::Heads AttentionLayer::heads_of(const TensorView& qkv) const {
  const AttentionConfig& c = config_;
  return {qkv.columns(0, c.q_size()).split_last(c.heads, c.head_dim),
          qkv.columns(c.q_size(), c.kv_size()).split_last(c.kv_heads, c.head_dim),
          qkv.columns(c.q_size() + c.kv_size(), c.kv_size()).split_last(c.kv_heads, c.head_dim)};
}

void AttentionLayer::rope(LayerContext& ctx, const TensorView& heads, bool inverse) const {
  if (!config_.rope) return;
  const RopeViews rope = ctx.rope(*config_.rope);
  ops::rope(ctx.compute(), {.x = heads,
                            .positions = ctx.batch().positions,
                            .frequencies = rope.frequencies,
                            .scale = config_.rope_scale,
                            .inverse = inverse,
                            .interleaved = rope.interleaved});
}

Scaled AttentionLayer::write_normed(LayerContext& ctx, const TensorView& x, const TensorView& statistics,
                                    const Saved& saved, Linear::ReadBy reader) const {
  if (!norms_input()) return x;
  const auto write = [&](const TensorView& y, const ops::Fp8Output& fp8) { norm_.forward(ctx, x, y, statistics, fp8); };
  return write_input(ctx, qkv_.linear(), x.shape(), {saved.tensors[kNormed], saved.tensors[kNormedScale]}, reader,
                     {write, norm_.writes_fp8()});
}

void AttentionLayer::project(LayerContext& ctx, const Scaled& normed, const TensorView& qkv, const Saved& saved) const {
  qkv_.forward(ctx, normed, own_rows(ctx, qkv), saved.tensors[kQkvAdapters]);
  complete(ctx, qkv);
  if (q_norm_) return;
  const Heads heads = heads_of(qkv);
  rope(ctx, heads.q, false);
  rope(ctx, heads.k, false);
}

AttentionLayer::Inputs AttentionLayer::inputs_of(LayerContext& ctx, const TensorView& qkv) const {
  const Heads heads = heads_of(qkv);
  if (!q_norm_) return {.q = heads.q, .k = heads.k, .v = heads.v};
  const AttentionConfig& c = config_;
  const std::int64_t rows = qkv.size(0);
  const TensorView both = ctx.temp(ctx.dtype(), {rows, c.q_size() + c.kv_size()});
  const TensorView q = both.columns(0, c.q_size()).split_last(c.heads, c.head_dim);
  const Inputs out{.q = q,
                   .k = both.columns(c.q_size(), c.kv_size()).split_last(c.kv_heads, c.head_dim),
                   .v = heads.v,
                   .q_statistics = ctx.temp(DType::f32, {rows, c.heads}),
                   .k_statistics = ctx.temp(DType::f32, {rows, c.kv_heads})};
  q_norm_->forward(ctx, heads.q, q, out.q_statistics);
  rope(ctx, q, false);
  k_norm_->forward(ctx, heads.k, out.k, out.k_statistics);
  rope(ctx, out.k, false);
  return out;
}

LayerOutput::Tensors AttentionLayer::output_tensors(LayerContext& ctx, const Saved& saved) const {
  const TensorView inner = saved.tensors[kOutputAdapters];
  if (!output_.has_norm()) return {.inner = inner};
  return {.z = saved_or_temp(ctx, saved, kProjected),
          .statistics = saved_or_temp(ctx, saved, kPostStatistics),
          .inner = inner};
}

TensorView AttentionLayer::query_heads(const TensorView& matrix) const {
  return matrix.split_last(config_.heads, config_.head_dim);
}

TensorView AttentionLayer::own_rows(const LayerContext& ctx, const TensorView& matrix) const {
  const RowCounts rows = ctx.rows();
  return matrix.rows(qkv_.linear().begin(rows), qkv_.linear().rows(rows));
}

void AttentionLayer::complete(LayerContext& ctx, const TensorView& matrix) const {
  const TensorView own = own_rows(ctx, matrix);
  if (own.size(0) < matrix.size(0)) ctx.seams().tensor_reduce->gather(ctx, own, matrix);
}

ops::AttentionCall AttentionLayer::call_of(const LayerContext& ctx, const AttentionPart& part) const {
  const AttentionConfig& c = config_;
  HAWSER_CHECK(!c.alibi || ctx.alibi_slopes().elements() == c.heads, c.output, ": ", ctx.alibi_slopes().elements(),
               " ALiBi slopes of ", c.heads, " heads");
  const std::int64_t heads = part.tensors.q.size(1);
  ops::AttentionCall call = operands_of(part);
  call.scale = c.score_scale();
  call.softcap = c.softcap.value_or(0);
  if (c.alibi) call.slopes = ctx.alibi_slopes().rows(part.first_head, heads);
  call.dropout = dropout_of(ctx, part);
  call.flops = 4.0 * static_cast<double>(heads * c.head_dim) * part.visible;
  return call;
}

ops::AttentionDropout AttentionLayer::dropout_of(const LayerContext& ctx, const AttentionPart& part) const {
  const AttentionConfig& c = config_;
  if (c.dropout == 0 || !ctx.training()) return {};
  HAWSER_CHECK(!part.query_ids.empty() && !part.key_ids.empty(), c.output,
               ": dropout of probabilities, but no row ids of ", part.query_ids.empty() ? "queries" : "keys",
               " in the batch");
  const ops::RandomKey random = ctx.random(Site::attention_probabilities);
  return {.probability = c.dropout,
          .key = random.key,
          .first_head = c.heads_slice.begin + part.first_head,
          .step = random.step,
          .query_ids = part.query_ids,
          .key_ids = part.key_ids};
}

void AttentionLayer::attend(LayerContext& ctx, const Inputs& inputs, const TensorView& o, const TensorView& lse) const {
  const auto call = ctx.seams().attention->begin(
      ctx, config_.mask(), {.q = inputs.q, .k = inputs.k, .v = inputs.v, .o = query_heads(o), .lse = lse});
  nn::attend(ctx, *call, [&](const AttentionPart& part) { return call_of(ctx, part); });
  call->finish_queries();
}

void AttentionLayer::forward(LayerContext& ctx, const TensorView& x, const TensorView& residual, const TensorView& y,
                             const Saved& saved) const {
  const TensorView statistics = statistics_of(ctx, saved);
  const Scaled normed = write_normed(ctx, x, statistics, saved, Linear::ReadBy::product);
  const TensorView qkv = saved_or_temp(ctx, saved, kQkv);
  project(ctx, normed, qkv, saved);
  const TensorView o = saved_or_temp(ctx, saved, kOut), lse = saved_or_temp(ctx, saved, kLse);
  attend(ctx, inputs_of(ctx, qkv), o, lse);
  output_.forward(ctx, own_rows(ctx, o), residual, y, output_tensors(ctx, saved));
}

void AttentionLayer::recompute(LayerContext& ctx, const Saved& saved, const TensorView& y,
                               const SavePolicy& policy) const {
  const TensorView statistics = statistics_of(ctx, saved), qkv = saved_or_temp(ctx, saved, kQkv);
  const Scaled normed = write_normed(ctx, saved.x, statistics, saved, Linear::ReadBy::product);
  project(ctx, normed, qkv, saved);
  const TensorView o = saved.tensors[kOut];
  if (policy.recomputes_attention()) attend(ctx, inputs_of(ctx, qkv), o, saved.tensors[kLse]);
  if (!y.empty()) return output_.forward(ctx, own_rows(ctx, o), saved.x, y, output_tensors(ctx, saved));
  if (output_.has_norm() && policy.recomputes_attention()) {
    output_.recompute(ctx, own_rows(ctx, o), saved.x, {.z = saved.tensors[kProjected]});
  }
}

void AttentionLayer::backward(LayerContext& ctx, const TensorView& dy, const TensorView& dresidual,
                              const TensorView& dx, const Saved& saved, GradientSink& sink,
                              const SavePolicy& policy) const {
  const TensorView o = saved.tensors[kOut], statistics = saved.tensors[kStatistics];
  const TensorView qkv = saved.tensors[kQkv], dqkv = saved_or_temp(ctx, saved, kDqkv);
  const Heads heads = heads_of(qkv), gradients = heads_of(dqkv);
  const Inputs inputs = inputs_of(ctx, qkv);
  const TensorView d_o = ctx.temp(ctx.dtype(), {ctx.rows().full, config_.q_size()});
  // Keys of other ranks arrive while d_o is computed; their gradients are reduced during the output weight's gradient.
  const auto seam_call = ctx.seams().attention->begin(ctx, config_.mask(),
                                                      {.q = inputs.q,
                                                       .k = inputs.k,
                                                       .v = inputs.v,
                                                       .o = query_heads(o),
                                                       .lse = saved.tensors[kLse],
                                                       .d_o = query_heads(d_o),
                                                       .dq = gradients.q,
                                                       .dk = gradients.k,
                                                       .dv = gradients.v});
  LayerOutput::Tensors output = {saved.tensors[kProjected], saved.tensors[kPostStatistics]};
  if (output_.has_norm()) output.dz = saved_or_temp(ctx, saved, kDprojected);
  const auto [dz, of_o, rounded_dz] =
      output_.backward(ctx, dy, output, own_rows(ctx, d_o), sink, policy.delay_weight_gradients);
  complete(ctx, d_o);
  attend_backward(ctx, *seam_call, [&](const AttentionPart& part) { return call_of(ctx, part); });
  if (!policy.delay_weight_gradients) {
    output_.linear().weight_gradient(ctx, dz, own_rows(ctx, o), sink, {saved.tensors[kOutputAdapters], of_o},
                                     rounded_dz);
  }
  seam_call->finish_queries();
  rope(ctx, gradients.q, true);
  if (q_norm_) q_norm_->backward(ctx, heads.q, inputs.q_statistics, gradients.q, TensorView(), gradients.q, sink);
  seam_call->finish_keys();
  rope(ctx, gradients.k, true);
  if (k_norm_) k_norm_->backward(ctx, heads.k, inputs.k_statistics, gradients.k, TensorView(), gradients.k, sink);
  const AdapterTensors of_qkv = {saved.tensors[kQkvAdapters], qkv_.linear().make_inner_gradient(ctx)};
  const TensorView of_own = own_rows(ctx, dqkv);
  qkv_.linear().adapter_gradient(ctx, of_own, of_qkv.inner_gradient);
  const Scaled normed = policy.delay_weight_gradients ? Scaled() : normed_again(ctx, saved);
  const TensorView dnormed = ctx.temp(ctx.dtype(), saved.x.shape());
  if (policy.delay_weight_gradients) {
    qkv_.input_gradient(ctx, of_own, dnormed, of_qkv.inner_gradient);
  } else {
    qkv_.backward(ctx, of_own, normed, dnormed, sink, of_qkv);
  }
  if (norms_input()) return norm_.backward(ctx, saved.x, statistics, dnormed, dresidual, dx, sink);
  ops::add(ctx.compute(), {.a = dnormed, .b = output.dz, .y = dx});
}

void AttentionLayer::backward_weight(LayerContext& ctx, const TensorView& dy, const Saved& saved,
                                     GradientSink& sink) const {
  if (output_.linear().has_gradients(ctx.trainable())) {
    const Scaled dz = output_.output_gradient(ctx, dy, {.dz = saved.tensors[kDprojected]});
    output_.linear().weight_gradient(ctx, dz, own_rows(ctx, saved.tensors[kOut]), sink,
                                     {saved.tensors[kOutputAdapters], {}});
  }
  if (qkv_.linear().has_gradients(ctx.trainable())) {
    qkv_.weight_gradient(ctx, own_rows(ctx, saved.tensors[kDqkv]), normed_again(ctx, saved), sink,
                         {saved.tensors[kQkvAdapters], {}});
  }
}

Scaled AttentionLayer::normed_again(LayerContext& ctx, const Saved& saved) const {
  if (!qkv_.linear().reads_input(ctx.trainable())) return {};
  const SavedInput input{saved.tensors[kNormed], saved.tensors[kNormedScale]};
  if (!input.matrix.empty()) return input.read();
  return write_normed(ctx, saved.x, saved.tensors[kStatistics], saved, Linear::ReadBy::weight_gradient);
}

double AttentionLayer::flops(const RowCounts& counts, double pairs) const {
  const std::int64_t rows = qkv_.linear().rows(counts);
  const AttentionConfig& c = config_;
  return 2.0 * static_cast<double>(rows * c.width) * static_cast<double>(c.qkv_size() + c.q_size()) +
         4.0 * static_cast<double>(c.q_size()) * pairs + qkv_.linear().adapter_flops(rows, c.width) +
         output_.linear().adapter_flops(rows, c.q_size());
}

}  // namespace hawser::nn
