// `Layer`: the contract between layers and the executor.
//
// A layer is written as if the model were on one device. It holds sizes and names, no state: everything that it reads
// or writes in a call is a view that the caller provides. Example: the executor runs an MLP of width 4096 on a
// micro-batch of 8192 tokens, checkpointed. x, y, dy and dx are [8192, 4096]:
//
//   mlp.forward(ctx, x, x, y, saved);                     // y = x + f(x)
//   ...                                                   // the layers above, forward and backward
//   mlp.recompute(ctx, saved, {}, policy);                // from x: what backward reads
//   mlp.backward(ctx, dy, dy, dx, saved, sink, policy);   // dx = dy + the gradient of f(x), and the weights' gradients
//
// Shapes: T rows, the tokens of this rank's micro-batch (RowCounts says which of them a tensor has on this rank), and
// width C.
#pragma once

#include <optional>
#include <vector>

#include "nn/layer_context.h"
#include "nn/param.h"
#include "nn/save_policy.h"

namespace hawser::nn {

class Layer {
 public:
  virtual ~Layer() = default;
  virtual const std::vector<Param>& params() const = 0;
  // The tensors that the layer saves under a policy. Their number and order do not depend on the policy, nor on what is
  // trainable. What only the gradients of frozen parameters would read is not saved. `seams`: those
  // that the passes have in their LayerContext.
  virtual std::vector<SavedSpec> saved_specs(const RowCounts& rows, DType dtype, const SavePolicy& policy,
                                             const TrainableParams& trainable, const Seams& seams) const = 0;
  // x, residual, y, dy, dresidual, dx: dense [RowCounts::residual, C] in LayerContext::dtype(). y and dx overlap no
  // other; those that are read are not changed. The residual addition is part of a layer. In a serial block residual is
  // x, and dresidual dy. In a parallel block all layers read the block's input x, and each adds to the sum that the one
  // before has written. With one norm for all (Param::shared) each layer computes norm(x) itself.
  // With NormPlace::post, y = norm(residual + f(x)): backward then writes the complete gradient of x, which is the
  // residual, to dx and does not read dresidual. Only in serial blocks.

  // y = residual + f(x). Writes the saved tensors whose writer is forward, as far as their views are not empty: an
  // empty view is not saved under this policy.
  virtual void forward(LayerContext&, const TensorView& x, const TensorView& residual, const TensorView& y,
                       const Saved&) const = 0;
  // Writes the saved tensors whose writer is recompute, from x and what forward saved; and the layer's output, if y is
  // not empty (SavePolicy::recomputes_output), only in serial blocks. Called only if recomputes() is true.
  // InternalError in a layer that is the last of its blocks, with a y.
  virtual void recompute(LayerContext&, const Saved&, const TensorView& y, const SavePolicy&) const = 0;
  // dx = dresidual + the gradient of f(x) from dy; and the parameters' gradients. With delay_weight_gradients,
  // backward_weight computes those of GEMM weights. May overwrite saved tensors unless backward_weight reads them.
  // backward_weight is called only if a parameter is trainable.
  virtual void backward(LayerContext&, const TensorView& dy, const TensorView& dresidual, const TensorView& dx,
                        const Saved&, GradientSink&, const SavePolicy&) const = 0;
  virtual void backward_weight(LayerContext&, const TensorView& dy, const Saved&, GradientSink&) const = 0;
  // The parameters, by index, that are the weight of the Linear, or the experts, at this site, whose operands may be
  // quantized (Param::of_linear). There are none if the layer has no Linear there.
  virtual std::vector<int> linear_weights(Site) const { return {}; }
  // A row of y, and of dx, depends on that row of the others alone: passes may run on some rows at a time.
  virtual bool has_independent_rows() const { return false; }
  virtual bool draws_random_numbers() const { return false; }    // calls LayerContext::random() while training
  virtual bool reads_token_mask() const { return false; }        // BatchViews::token_mask
  virtual bool may_refuse(const Seams&) const { return false; }  // LayerContext::refusal()
  // The loss that the layer adds to the model's, one object for all layers of a model. It is null if there is none.
  virtual const AuxiliaryLoss* auxiliary_loss() const { return nullptr; }
  // Model FLOPs of forward for a rank's rows and the given number of visible query-key pairs; GEMMs and attention only.
  virtual double flops(const RowCounts& rows, double pairs) const = 0;
  // Of an attention layer; `pairs` of flops() depends on its mask. Other layers have none.
  virtual std::optional<AttentionMask> attention_mask() const { return std::nullopt; }
};

// True if a layer has a recompute pass under a policy: recompute writes at least one saved tensor.
bool recomputes(const Layer& layer, const SavePolicy& policy, const TrainableParams& trainable);

}  // namespace hawser::nn
