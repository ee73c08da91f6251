// `LayerOutput`: the last Linear of a layer and what follows it, by the layer's NormPlace.
//
//   pre:       y = residual + Linear(x)
//   sandwich:  y = residual + norm(z),  z = Linear(x)
//   post:      y = norm(z),             z = residual + Linear(x)
//
// x [Linear::rows, in]; residual, z, y and their gradients [RowCounts::residual, C] in LayerContext::dtype().
// Everything is enqueued on the compute stream. Errors: those of Linear and Norm.
#pragma once

#include <array>
#include <optional>

#include "nn/blocks/linear.h"
#include "nn/blocks/norm.h"
#include "nn/blocks/saved_tensors.h"

namespace hawser::nn {

class LayerOutput {
 public:
  // What the norm's gradient needs: z and Norm::statistics; and dz, the gradient of z. All three empty without a norm.
  // And AdapterTensors::inner.
  struct Tensors {
    TensorView z, statistics, dz, inner;
  };
  static constexpr std::size_t kTensors = 4;

  // `norm`: ignored with NormPlace::pre.
  LayerOutput(RowParallelLinear linear, NormPlace place, const std::optional<Norm>& norm)
      : linear_(std::move(linear)),
        norm_(place == NormPlace::pre ? std::nullopt : norm),
        norms_sum_(place == NormPlace::post) {}
  const Linear& linear() const { return linear_.linear(); }
  bool has_norm() const { return norm_.has_value(); }

  // The members of Tensors, in their order.
  std::array<TensorSpec, kTensors> tensors(const RowCounts& rows, std::int64_t width, DType dtype) const;
  // `recomputed`: the recompute pass writes z, from an x that it has anyway; it is not saved before.
  std::array<SavedSpec, kTensors> saved_specs(const RowCounts& rows, std::int64_t width, DType dtype,
                                              const SavePolicy& policy, const TrainableParams& trainable,
                                              bool recomputed) const;

  // Writes z, statistics and inner.
  void forward(LayerContext&, const Scaled& x, const TensorView& residual, const TensorView& y, const Tensors&) const;
  // Writes z again.
  void recompute(LayerContext&, const Scaled& x, const TensorView& residual, const Tensors&) const;
  // From dy through the norm, if there is one: writes dz, the norm's parameter gradients, and dx, the gradient of x.
  // With NormPlace::post dz is also that of residual.
  // `delayed`: SavePolicy::delay_weight_gradients.
  RowParallelLinear::OutputGradient backward(LayerContext&, const TensorView& dy, const Tensors&, const TensorView& dx,
                                             GradientSink&, bool delayed) const;
  // OutputGradient::dy once more, from dy and the dz that backward has written.
  Scaled output_gradient(LayerContext&, const TensorView& dy, const Tensors&) const;

 private:
  RowParallelLinear linear_;
  std::optional<Norm> norm_;
  bool norms_sum_;
};

}  // namespace hawser::nn
