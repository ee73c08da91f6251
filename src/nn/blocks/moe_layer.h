// `MoeLayer`: a mixture of experts in place of the MLP of a transformer block (arXiv 2401.04088).
//
//   p = softmax over experts of router(norm(x))
//   y = residual + sum over the top_k experts e of a token: w[e] * down[e](activation(gate_up[e](norm(x))))
//
// w are the top_k largest p, with normalise_top_k divided by their sum. The router is a float32 Linear, whatever the
// compute dtype. No token is dropped. Tokens are copied to the rows of their experts (ops/moe/dispatch.h), which two
// grouped GEMMs read. What the router decides in forward is saved: later passes read it and never decide again. Rows
// that are no tokens (BatchViews::token_mask) have no expert: y = residual.
//
// Expert parallelism: a rank has L of the experts (MoeConfig::experts_shard). TokenExchange (nn/seams/token_exchange.h)
// sends the rows of tokens to the ranks of their experts and back, in forward, and again in each pass that recomputes
// them. The GEMMs and the activation run on one piece of the experts at a time, while others are on their way. The
// exchange weights and sums what returns. In backward each row's weight is sent to its expert with the row, and the
// weight's gradient back, which is a dot product of two rows there. The experts' weight gradients run while the rows'
// are returned. Every rank routes RowCounts::residual rows: with sequence parallelism its own, so that the gradients of
// router and experts are sums over the tensor ranks; without it tensor ranks are copies.
//
// The experts' weights are two Params, [L * 2 F, C] (of each expert gate, then up; [L * F, C] without a gate) and [L *
// C, F], with one segment for each tensor of the Hugging Face folder. Names of segments are those of the folder. That
// of a Param depends on the mesh: with expert parallelism it has the rank's range of experts
// ("experts.4-7.down.weight").
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <string>

#include "base/index_range.h"
#include "nn/blocks/activation.h"
#include "nn/blocks/linear_input.h"
#include "nn/blocks/norm.h"
#include "nn/blocks/router_loss.h"
#include "nn/blocks/saved_tensors.h"

namespace hawser::nn {

struct MoeConfig {
  std::int64_t width = 0, experts = 0, top_k = 0;  // C, E, K
  EqualShard experts_shard;                        // the experts of this rank: comm::expert_part
  std::int64_t inner = 0;                          // F of an expert
  bool normalise_top_k = true;
  Activation activation = Activation::swiglu;
  NormConfig norm_config;
  bool shared_norm = false;  // `norm` is a layer's before this one (Param::shared)
  double initial_std = 0.02, output_std = 0.02;
  // Coefficients of the losses that the router adds, as the model's config has them (router_aux_loss_coef). A recipe
  // may change them. `reported`: the model's own loss includes the load-balancing loss (output_router_logits).
  double auxiliary_loss = 0, router_z_loss = 0;
  bool reported = false;
  // Names without ".weight", as in the Hugging Face folder. Those of experts have "{}" in place of the expert's number:
  // "model.layers.0.block_sparse_moe.experts.{}.w1".
  std::string norm, router, gate, up, down;

  std::int64_t local_experts() const { return experts / experts_shard.count; }  // L
  std::int64_t up_size() const { return is_gated(activation) ? 2 * inner : inner; }
  RouterLossConfig loss() const { return {experts, auxiliary_loss, router_z_loss}; }
};

class MoeLayer : public Layer {
 public:
  // `loss`: one object for all layers of a model, with config.loss().
  MoeLayer(MoeConfig config, std::shared_ptr<const RouterLoss> loss);
  const std::vector<Param>& params() const override { return params_; }
  std::vector<SavedSpec> saved_specs(const RowCounts& rows, DType dtype, const SavePolicy& policy,
                                     const TrainableParams& trainable, const Seams& seams) const override;
  void forward(LayerContext&, const TensorView& x, const TensorView& residual, const TensorView& y,
               const Saved&) const override;
  void recompute(LayerContext&, const Saved&, const TensorView& y, const SavePolicy&) const override;
  void backward(LayerContext&, const TensorView& dy, const TensorView& dresidual, const TensorView& dx, const Saved&,
                GradientSink&, const SavePolicy&) const override;
  void backward_weight(LayerContext&, const TensorView& dy, const Saved&, GradientSink&) const override;
  std::vector<int> linear_weights(Site site) const override;
  bool reads_token_mask() const override { return true; }
  bool may_refuse(const Seams& seams) const override { return exchanged() && seams.expert_row_bound.has_value(); }
  const AuxiliaryLoss* auxiliary_loss() const override { return loss_.get(); }
  double flops(const RowCounts& rows, double pairs) const override;  // of top_k experts per token that it routes

 private:
  enum SavedIndex {
    kStatistics,
    kNormed,
    kLogits,
    kExperts,
    kWeights,
    kOffsets,
    kRows,
    kAssignments,
    kGateUp,
    kInner,
    kDgateUp,
    kDlogits,
    kCounts,
    kExpertOffsets,
    kTokenRows,
    kExchangeState,
    kSavedCount
  };
  std::array<TensorSpec, kSavedCount> tensors(const RowCounts& rows, DType dtype, const Seams& seams) const;
  TensorView saved_or_temp(LayerContext& ctx, const Saved& saved, SavedIndex index) const;
  // The views of a routing, in forward or later.
  struct Routing {
    TensorView logits;
    TokenExchange::Routing exchange;
  };
  Routing route(LayerContext& ctx, const TensorView& normed, const Saved& saved) const;
  // With the view of each of the saved tensors of a routing.
  template <class View>
  Routing routing_of(LayerContext& ctx, const View& view) const;
  Routing saved_routing(LayerContext& ctx, const Saved& saved) const;
  Scaled write_inner(LayerContext& ctx, const Routing& routing, int piece, const TensorView& gate_up,
                     const TensorView& inner) const;
  Scaled write_dgate_up(LayerContext& ctx, const Routing& routing, int piece, const TensorView& gate_up,
                        const TensorView& dinner, const TensorView& dgate_up, const SavePolicy& policy) const;
  // What backward has between its exchange's start and end. Tensors of rows have those of all pieces.
  struct Backward {
    Routing routing;
    TensorView gate_up, inner, dinner, dgate_up, dweights = {};
    std::vector<Scaled> read_dgate_up = {};                  // by piece: as GEMMs read it
    Scaled sent = {};                                        // dy as it is sent
    std::unique_ptr<TokenExchange::Dispatch> arriving = {};  // rows of dy, and their weights
    std::unique_ptr<TokenExchange::Combine> returning = {};  // the gradients of rows, and of their weights
  };
  Backward start_backward(LayerContext& ctx, const Saved& saved, const TensorView& dy) const;
  void backward_piece(LayerContext& ctx, Backward& b, int piece, const SavePolicy& policy) const;
  void return_piece(LayerContext& ctx, const Backward& b, int piece, const TensorView& drows) const;
  bool exchanged() const { return config_.experts_shard.count > 1; }
  static bool reads_normed(const TrainableParams& trainable);
  // norm(x) if a weight's gradient reads it, otherwise empty.
  TensorView normed_again(LayerContext&, const Saved&) const;
  void expert_gradients(LayerContext& ctx, const Routing& routing, const TensorView& dy, const TensorView& inner,
                        const std::function<Scaled(int)>& dgate_up, const TensorView& normed, GradientSink& sink) const;
  void router_gradient(LayerContext& ctx, const TensorView& dlogits, const TensorView& normed,
                       GradientSink& sink) const;
  TokenExchange::Sizes sizes(std::int64_t rows, const Seams& seams) const;

  MoeConfig config_;
  std::vector<Param> params_;
  std::shared_ptr<const RouterLoss> loss_;
  Norm norm_;
  Linear router_;
};

}  // namespace hawser::nn
