#include "nn/blocks/saved_tensors.h"

#include <algorithm>

#include "nn/row_tiles.h"

namespace hawser::nn {

TensorView saved_or_temp(LayerContext& ctx, const Saved& saved, int index, const TensorSpec& spec) {
  const TensorView& view = saved.tensors[static_cast<std::size_t>(index)];
  return view.empty() ? ctx.temp(spec.dtype, spec.shape) : view;
}

SavedSpec saved_spec(const TensorSpec& spec, Pass writer, Pass last_reader) {
  return {spec.name, spec.dtype, spec.shape, writer, last_reader};
}

SavedSpec unsaved_spec(const TensorSpec& spec) {
  return {spec.name, spec.dtype, Shape(), Pass::forward, Pass::forward};
}

Pass last_reader(const SavePolicy& policy, bool weights) {
  return policy.delay_weight_gradients && weights ? Pass::backward_weight : Pass::backward;
}

SavedSpec normed_spec(const TensorSpec& spec, const SavePolicy& policy, bool recomputed, bool weights) {
  if (!weights) return unsaved_spec(spec);
  if (!policy.recomputes_pointwise()) return saved_spec(spec, Pass::forward, last_reader(policy, true));
  if (recomputed && !policy.delay_weight_gradients) return saved_spec(spec, Pass::recompute, Pass::backward);
  return unsaved_spec(spec);
}

SavedSpec statistics_spec(const TensorSpec& spec, const SavePolicy& policy, bool recomputed, bool weights) {
  return saved_spec(spec, recomputed ? Pass::recompute : Pass::forward,
                    last_reader(policy, weights && policy.recomputes_pointwise()));
}

SavedSpec output_gradient_spec(const TensorSpec& spec, const SavePolicy& policy, bool weights) {
  if (!policy.delay_weight_gradients || !weights) return unsaved_spec(spec);
  return saved_spec(spec, Pass::backward, Pass::backward_weight);
}

SavedSpec inner_spec(const TensorSpec& spec, const SavePolicy& policy, bool weights) {
  if (!weights) return unsaved_spec(spec);
  if (!policy.recomputes_pointwise()) return saved_spec(spec, Pass::forward, last_reader(policy, true));
  return output_gradient_spec(spec, policy, true);  // backward recomputes it
}

TensorSpec adapters_tensor(const char* name, const Linear& linear, const RowCounts& rows, DType dtype) {
  return {name, dtype, {linear.adapter_ranks(), linear.rows(rows)}};
}

SavedSpec adapters_spec(const TensorSpec& spec, const SavePolicy& policy, bool recomputed, const Linear& linear,
                        const TrainableParams& trainable) {
  const bool read = std::ranges::any_of(linear.adapters, [&](const Adapter& adapter) { return trainable(adapter.b); });
  if (!read || linear.adapter_ranks() == 0) return unsaved_spec(spec);
  return saved_spec(spec, recomputed ? Pass::recompute : Pass::forward, last_reader(policy, true));
}

bool recomputes(const Layer& layer, const SavePolicy& policy, const TrainableParams& trainable) {
  const std::vector<SavedSpec> specs = saved_specs_of(layer, {1, 1}, DType::f32, policy, trainable, {});
  return std::any_of(specs.begin(), specs.end(),
                     [](const SavedSpec& spec) { return spec.shape.rank() > 0 && spec.writer == Pass::recompute; });
}

}  // namespace hawser::nn
