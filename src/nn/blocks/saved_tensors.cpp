#include "nn/blocks/saved_tensors.h"

#include <algorithm>

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

SavedSpec normed_spec(const TensorSpec& spec, const SavePolicy& policy, bool recomputed) {
  const Pass weight_reader = policy.delay_weight_gradients ? Pass::backward_weight : Pass::backward;
  if (!policy.recomputes_pointwise()) return saved_spec(spec, Pass::forward, weight_reader);
  if (recomputed && !policy.delay_weight_gradients) return saved_spec(spec, Pass::recompute, Pass::backward);
  return unsaved_spec(spec);
}

SavedSpec statistics_spec(const TensorSpec& spec, const SavePolicy& policy, bool recomputed) {
  const bool read_late = policy.recomputes_pointwise() && policy.delay_weight_gradients;
  return saved_spec(spec, recomputed ? Pass::recompute : Pass::forward,
                    read_late ? Pass::backward_weight : Pass::backward);
}

SavedSpec output_gradient_spec(const TensorSpec& spec, const SavePolicy& policy) {
  if (!policy.delay_weight_gradients) return unsaved_spec(spec);
  return saved_spec(spec, Pass::backward, Pass::backward_weight);
}

bool recomputes(const Layer& layer, const SavePolicy& policy) {
  const std::vector<SavedSpec> specs = layer.saved_specs(1, DType::f32, policy);
  return std::any_of(specs.begin(), specs.end(),
                     [](const SavedSpec& spec) { return spec.shape.rank() > 0 && spec.writer == Pass::recompute; });
}

}  // namespace hawser::nn
