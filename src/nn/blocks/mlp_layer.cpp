// Shapes: T rows, C width, F inner width. Norms and the residual have RowCounts::residual rows, everything else
// Linear::rows.
#include "nn/blocks/mlp_layer.h"

#include "ops/copy/add.h"

namespace hawser::nn {

namespace {

enum MlpParameter { kMlpNorm, kGateUpWeight, kDownWeight, kGateUpBias, kDownBias, kMlpNormBias };

// The weight of the norm after the down projection; its bias follows it.
int post_norm_index(const MlpConfig& c) {
  return kGateUpBias + (c.bias ? 2 : 0) + (c.norm_config.bias ? 1 : 0);
}

std::vector<Param> mlp_params(const MlpConfig& c) {
  const auto gate_up = [&](const char* suffix, const Shape& shape, bool transposed) {
    std::vector<Segment> segments;
    if (is_gated(c.activation)) segments.push_back(row_segment(c.gate + suffix, 0, c.inner, shape, c.inner_slice));
    segments.push_back(row_segment(c.up + suffix, c.up_size() - c.inner, c.inner, shape, c.inner_slice));
    for (Segment& segment : segments) segment.file.transposed = transposed;
    return segments;
  };
  const Shape wide{c.up_size(), c.width};
  std::vector<Param> params = {norm_weight(c.norm, c.width, c.norm_config)};
  params.back().shared = c.shared_norm;
  params.push_back(fused_param(c.fused + ".weight", gate_up(".weight", wide, c.transposed), wide,
                               {Initial::Kind::normal, c.initial_std}, true));
  params.back().of_linear = true;
  params.push_back(sliced_param(c.down + ".weight", {c.width, c.inner}, 1, c.inner_slice,
                                {Initial::Kind::normal, c.output_std}, true));
  params.back().segments.edit().front().file.transposed = c.transposed;
  params.back().of_linear = true;
  if (c.bias) {
    params.push_back(fused_param(c.fused + ".bias", gate_up(".bias", {c.up_size()}, false), {c.up_size()}, {}, false));
    params.push_back(replicated_param(c.down + ".bias", {c.width}, {}));
  }
  if (c.norm_config.bias) {
    params.push_back(norm_bias(c.norm, c.width));
    params.back().shared = c.shared_norm;
  }
  if (c.norm_place == NormPlace::sandwich) {
    params.push_back(norm_weight(c.post_norm, c.width, c.norm_config));
    if (c.norm_config.bias) params.push_back(norm_bias(c.post_norm, c.width));
  }
  return params;
}

}  // namespace

MlpLayer::MlpLayer(MlpConfig config)
    : config_(std::move(config)),
      params_(mlp_params(config_)),
      norm_(config_.norm_config, kMlpNorm, config_.bias ? kMlpNormBias : kGateUpBias),
      gate_up_(make_gate_up()),
      down_(make_down()) {
  if (!config_.sliced) std::ranges::for_each(params_, set_unsliced);
}

ColumnParallelLinear MlpLayer::make_gate_up() {
  const MlpConfig& c = config_;
  std::vector<AdapterTarget> targets;
  if (is_gated(c.activation)) targets.push_back({c.gate, {{0, c.inner, c.inner_slice}}});
  targets.push_back({c.up, {{c.up_size() - c.inner, c.inner, c.inner_slice}}});
  return ColumnParallelLinear({.site = Site::up_projection,
                               .weight = kGateUpWeight,
                               .bias = c.bias ? kGateUpBias : -1,
                               .adapters = add_adapters(c.adapters, targets, c.width, {}, params_),
                               .sliced = c.sliced});
}

LayerOutput MlpLayer::make_down() {
  const MlpConfig& c = config_;
  std::optional<Norm> post_norm;
  if (c.norm_place == NormPlace::sandwich) {
    post_norm.emplace(c.norm_config, post_norm_index(c), post_norm_index(c) + 1);
  }
  if (c.norm_place == NormPlace::post) post_norm = norm_;
  return {RowParallelLinear(
              {.site = Site::down_projection,
               .weight = kDownWeight,
               .bias = c.bias ? kDownBias : -1,
               .adapters = add_adapters(c.adapters, {{c.down, {{0, c.width}}}}, c.inner, c.inner_slice, params_),
               .first_input = c.inner_slice.begin,
               .sliced = c.sliced}),
          c.norm_place, post_norm};
}

std::vector<int> MlpLayer::linear_weights(Site site) const {
  std::vector<int> weights = gate_up_.linear().weights_at(site);
  return weights.empty() ? down_.linear().weights_at(site) : weights;
}

bool MlpLayer::draws_random_numbers() const {
  return gate_up_.linear().draws_random_numbers() || down_.linear().draws_random_numbers();
}

std::array<TensorSpec, MlpLayer::kSavedCount> MlpLayer::tensors(const RowCounts& rows, DType dtype) const {
  const MlpConfig& c = config_;
  const std::int64_t inner_rows = gate_up_.linear().rows(rows);
  const auto down = down_.tensors(rows, c.width, dtype);
  return {{{"norm_statistics", DType::f32, norm_.statistics(rows.residual)},
           {"normed", dtype, {rows.residual, c.width}},
           {"gate_up", dtype, {inner_rows, c.up_size()}},
           {"inner", dtype, {inner_rows, c.inner}},
           {"dgate_up", dtype, {inner_rows, c.up_size()}},
           down[0],
           down[1],
           down[2],
           down[3],
           adapters_tensor("gate_up_adapters", gate_up_.linear(), rows, dtype),
           {"normed_scale", DType::f32, {1}},
           {"inner_scale", DType::f32, {1}}}};
}

std::vector<SavedSpec> MlpLayer::saved_specs(const RowCounts& rows, DType dtype, const SavePolicy& policy,
                                             const TrainableParams& trainable, const Seams&) const {
  auto all = tensors(rows, dtype);
  if (saves_fp8(policy, gate_up_.linear(), rows)) all[kNormed] = fp8_spec(all[kNormed]);
  if (saves_fp8(policy, down_.linear(), rows)) all[kInner] = fp8_spec(all[kInner]);
  const bool again = policy.recomputes_gate_up(), reads_normed = gate_up_.linear().reads_input(trainable);
  const auto down = down_.saved_specs(rows, config_.width, dtype, policy, trainable, again);
  const bool before = norms_input();
  const SavedSpec normed = before ? normed_spec(all[kNormed], policy, again, reads_normed) : unsaved_spec(all[kNormed]);
  const SavedSpec inner = inner_spec(all[kInner], policy, down_.linear().reads_input(trainable));
  return {before ? statistics_spec(all[kStatistics], policy, again, reads_normed) : unsaved_spec(all[kStatistics]),
          normed,
          saved_spec(all[kGateUp], again ? Pass::recompute : Pass::forward, Pass::backward),
          inner,
          output_gradient_spec(all[kDgateUp], policy, gate_up_.linear().has_gradients(trainable)),
          down[0],
          down[1],
          down[2],
          down[3],
          adapters_spec(all[kGateUpAdapters], policy, again, gate_up_.linear(), trainable),
          scale_spec(all[kNormedScale].name, normed, policy.format(gate_up_.linear().site)),
          scale_spec(all[kInnerScale].name, inner, policy.format(down_.linear().site))};
}

TensorView MlpLayer::saved_or_temp(LayerContext& ctx, const Saved& saved, SavedIndex index) const {
  return nn::saved_or_temp(ctx, saved, index, tensors(ctx.rows(), ctx.dtype())[index]);
}

TensorView MlpLayer::statistics_of(LayerContext& ctx, const Saved& saved) const {
  return norms_input() ? saved_or_temp(ctx, saved, kStatistics) : TensorView();
}

LayerOutput::Tensors MlpLayer::down_tensors(LayerContext& ctx, const Saved& saved) const {
  const TensorView inner = saved.tensors[kOutputAdapters];
  if (!down_.has_norm()) return {.inner = inner};
  return {.z = saved_or_temp(ctx, saved, kProjected),
          .statistics = saved_or_temp(ctx, saved, kPostStatistics),
          .inner = inner};
}

SavedInput MlpLayer::saved_input(const Saved& saved, SavedIndex matrix, SavedIndex scale) const {
  return {saved.tensors[matrix], saved.tensors[scale]};
}

Scaled MlpLayer::write_normed(LayerContext& ctx, const TensorView& x, const TensorView& statistics, const Saved& saved,
                              Linear::ReadBy reader) const {
  if (!norms_input()) return x;
  const auto write = [&](const TensorView& y, const ops::Fp8Output& fp8) { norm_.forward(ctx, x, y, statistics, fp8); };
  return write_input(ctx, gate_up_.linear(), x.shape(), saved_input(saved, kNormed, kNormedScale), reader,
                     {write, norm_.writes_fp8()});
}

Scaled MlpLayer::write_inner(LayerContext& ctx, const TensorView& gate_up, const Saved& saved,
                             Linear::ReadBy reader) const {
  const auto write = [&](const TensorView& y, const ops::Fp8Output& fp8) {
    activate(ctx, config_.activation, gate_up, y, fp8);
  };
  return write_input(ctx, down_.linear(), {gate_up.size(0), config_.inner}, saved_input(saved, kInner, kInnerScale),
                     reader, {write, is_gated(config_.activation)});
}

void MlpLayer::forward(LayerContext& ctx, const TensorView& x, const TensorView& residual, const TensorView& y,
                       const Saved& saved) const {
  const TensorView statistics = statistics_of(ctx, saved);
  const Scaled normed = write_normed(ctx, x, statistics, saved, Linear::ReadBy::product);
  const TensorView gate_up = saved_or_temp(ctx, saved, kGateUp);
  gate_up_.forward(ctx, normed, gate_up, saved.tensors[kGateUpAdapters]);
  const Scaled inner = write_inner(ctx, gate_up, saved, Linear::ReadBy::product);
  down_.forward(ctx, inner, residual, y, down_tensors(ctx, saved));
}

void MlpLayer::recompute(LayerContext& ctx, const Saved& saved, const TensorView& y, const SavePolicy&) const {
  HAWSER_CHECK(y.empty(), config_.down, ": the output of an MLP is not recomputed");
  const TensorView statistics = statistics_of(ctx, saved);
  const Scaled normed = write_normed(ctx, saved.x, statistics, saved, Linear::ReadBy::product);
  const TensorView gate_up = saved_or_temp(ctx, saved, kGateUp);
  gate_up_.forward(ctx, normed, gate_up, saved.tensors[kGateUpAdapters]);
  if (!down_.has_norm()) return;
  const Scaled inner = write_inner(ctx, gate_up, saved, Linear::ReadBy::product);
  down_.recompute(ctx, inner, saved.x, {.z = saved.tensors[kProjected]});
}

MlpLayer::InnerGradients MlpLayer::inner_backward(LayerContext& ctx, const TensorView& dinner, const Saved& saved,
                                                  const SavePolicy& policy) const {
  const TensorView gate_up = saved.tensors[kGateUp];
  const bool again = policy.recomputes_pointwise() && down_.linear().reads_input(ctx.trainable());
  SavedInput input = saved_input(saved, kInner, kInnerScale);
  const auto by = Linear::ReadBy::weight_gradient;
  if (!policy.delay_weight_gradients && is_gated(config_.activation)) {
    const bool weights = gate_up_.linear().reads_input(ctx.trainable());
    const auto of_input = fp8_output(ctx, gate_up_.linear(), Operand::dy, gate_up.shape(),
                                     weights ? Linear::ReadBy::both : Linear::ReadBy::product);
    const auto of_inner = again ? fp8_output(ctx, down_.linear(), Operand::x, dinner.shape(), by, input) : std::nullopt;
    if (of_input && (of_inner || !again)) {
      const ops::Fp8Output none;
      activate_backward_fp8(ctx, config_.activation, gate_up, dinner, *of_input, of_inner ? *of_inner : none);
      return {scaled_of(*of_input), of_inner ? scaled_of(*of_inner) : input.read()};
    }
  }
  // Without delayed weight gradients gate and up have no later reader: their gradient overwrites them.
  const TensorView dgate_up = saved.tensors[kDgateUp].empty() ? gate_up : saved.tensors[kDgateUp];
  Scaled inner = input.read();
  if (again) {
    input.unsaved = dinner;  // which has no other reader
    const auto write = [&](const TensorView& y, const ops::Fp8Output&) {
      activate_backward(ctx, config_.activation, gate_up, dinner, dgate_up, y);
    };
    inner = write_input(ctx, down_.linear(), dinner.shape(), input, by, {write});
  } else {
    activate_backward(ctx, config_.activation, gate_up, dinner, dgate_up, TensorView());
  }
  return {dgate_up, inner};
}

void MlpLayer::backward(LayerContext& ctx, const TensorView& dy, const TensorView& dresidual, const TensorView& dx,
                        const Saved& saved, GradientSink& sink, const SavePolicy& policy) const {
  const bool delayed = policy.delay_weight_gradients;
  LayerOutput::Tensors output = {saved.tensors[kProjected], saved.tensors[kPostStatistics]};
  if (down_.has_norm()) output.dz = saved_or_temp(ctx, saved, kDprojected);
  const TensorView dinner = ctx.temp(ctx.dtype(), {down_.linear().rows(ctx.rows()), config_.inner});
  const auto [dz, of_inner, rounded_dz] = down_.backward(ctx, dy, output, dinner, sink, delayed);
  const auto [dgate_up, inner] = inner_backward(ctx, dinner, saved, policy);
  const AdapterTensors of_gate_up = {saved.tensors[kGateUpAdapters], gate_up_.linear().make_inner_gradient(ctx)};
  gate_up_.linear().adapter_gradient(ctx, dgate_up, of_gate_up.inner_gradient);
  if (!delayed) {
    down_.linear().weight_gradient(ctx, dz, inner, sink, {saved.tensors[kOutputAdapters], of_inner}, rounded_dz);
  }
  const Scaled normed = delayed ? Scaled() : normed_again(ctx, saved);
  const TensorView dnormed = ctx.temp(ctx.dtype(), saved.x.shape());
  if (delayed) {
    gate_up_.input_gradient(ctx, dgate_up, dnormed, of_gate_up.inner_gradient);
  } else {
    gate_up_.backward(ctx, dgate_up, normed, dnormed, sink, of_gate_up);
  }
  if (norms_input()) {
    return norm_.backward(ctx, saved.x, saved.tensors[kStatistics], dnormed, dresidual, dx, sink);
  }
  ops::add(ctx.compute(), {.a = dnormed, .b = output.dz, .y = dx});
}

void MlpLayer::backward_weight(LayerContext& ctx, const TensorView& dy, const Saved& saved, GradientSink& sink) const {
  if (down_.linear().has_gradients(ctx.trainable())) {
    const Scaled dz = down_.output_gradient(ctx, dy, {.dz = saved.tensors[kDprojected]});
    down_.linear().weight_gradient(ctx, dz, saved_input(saved, kInner, kInnerScale).read(), sink,
                                   {saved.tensors[kOutputAdapters], {}});
  }
  if (gate_up_.linear().has_gradients(ctx.trainable())) {
    gate_up_.weight_gradient(ctx, saved.tensors[kDgateUp], normed_again(ctx, saved), sink,
                             {saved.tensors[kGateUpAdapters], {}});
  }
}

Scaled MlpLayer::normed_again(LayerContext& ctx, const Saved& saved) const {
  if (!gate_up_.linear().reads_input(ctx.trainable())) return {};
  if (!saved.tensors[kNormed].empty()) return saved_input(saved, kNormed, kNormedScale).read();
  return write_normed(ctx, saved.x, saved.tensors[kStatistics], saved, Linear::ReadBy::weight_gradient);
}

double MlpLayer::flops(const RowCounts& counts, double) const {
  const std::int64_t rows = gate_up_.linear().rows(counts);
  return 2.0 * static_cast<double>(rows * config_.width) * static_cast<double>(config_.up_size() + config_.inner) +
         gate_up_.linear().adapter_flops(rows, config_.width) + down_.linear().adapter_flops(rows, config_.inner);
}

}  // namespace hawser::nn
