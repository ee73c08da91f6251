// `ForwardingLayer`: a layer that does what another does, for tests that change a part of it.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "nn/layer.h"

namespace hawser::nn::testing {

class ForwardingLayer : public Layer {
 public:
  explicit ForwardingLayer(std::unique_ptr<Layer> layer) : layer_(std::move(layer)), params_(layer_->params()) {}
  const std::vector<Param>& params() const override { return params_; }
  std::vector<SavedSpec> saved_specs(const RowCounts& rows, DType dtype, const SavePolicy& policy,
                                     const TrainableParams& trainable, const Seams& seams) const override {
    return layer_->saved_specs(rows, dtype, policy, trainable, seams);
  }
  void forward(LayerContext& ctx, const TensorView& x, const TensorView& residual, const TensorView& y,
               const Saved& saved) const override {
    layer_->forward(ctx, x, residual, y, saved);
  }
  void recompute(LayerContext& ctx, const Saved& saved, const TensorView& y, const SavePolicy& policy) const override {
    layer_->recompute(ctx, saved, y, policy);
  }
  void backward(LayerContext& ctx, const TensorView& dy, const TensorView& dresidual, const TensorView& dx,
                const Saved& saved, GradientSink& sink, const SavePolicy& policy) const override {
    layer_->backward(ctx, dy, dresidual, dx, saved, sink, policy);
  }
  void backward_weight(LayerContext& ctx, const TensorView& dy, const Saved& saved, GradientSink& sink) const override {
    layer_->backward_weight(ctx, dy, saved, sink);
  }
  std::vector<int> linear_weights(Site site) const override { return layer_->linear_weights(site); }
  bool draws_random_numbers() const override { return layer_->draws_random_numbers(); }
  bool reads_token_mask() const override { return layer_->reads_token_mask(); }
  bool may_refuse(const Seams& seams) const override { return layer_->may_refuse(seams); }
  const AuxiliaryLoss* auxiliary_loss() const override { return layer_->auxiliary_loss(); }
  double flops(const RowCounts& rows, double pairs) const override { return layer_->flops(rows, pairs); }
  std::optional<AttentionMask> attention_mask() const override { return layer_->attention_mask(); }

 protected:
  std::unique_ptr<Layer> layer_;
  std::vector<Param> params_;  // those of the layer, at first
};

}  // namespace hawser::nn::testing
