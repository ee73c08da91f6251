// `AuxiliaryLoss`: a loss that layers add to the model's, such as the load-balancing loss of routers.
//
//   loss = f(s[0], s[1], ...)     s[l]: statistics of the l-th of these layers, summed over all tokens of a micro-batch
//
// It may couple all layers and all tokens, so it is computed between forward and backward of a micro-batch:
// - Layer::forward writes its statistics over RowCounts::residual rows to AuxiliaryViews::statistics. It overwrites
//   them; recompute does not write them. Padding rows must not count.
// - Op::auxiliary_loss (program/program.h) sums them over the ranks with different tokens or layers (comm::Mesh's
//   loss(), or world() with sequence parallelism) and calls run(), which writes the factors, equal on all ranks.
//   Each pipeline stage has rows for the layers of all stages, those of other stages zero before the sum. The sum ends
//   when the last stage has run forward, so the op has a stream of its own (program::StreamId::auxiliary): it starts
//   after forward of the stage's last model chunk, and only backward passes of that micro-batch wait for it.
// - Layer::backward adds the loss's gradient to dx and to its parameters' gradients from AuxiliaryViews::factors.
// The step's auxiliary loss is the mean over its micro-batches (step::StepResult::auxiliary_loss). The model's loss
// does not include it; the gradient does.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"

namespace hawser::nn {

class LayerContext;

// One layer's views, float32. Both are empty if the step does not compute the loss; factors is empty in forward, and in
// steps without gradients.
struct AuxiliaryViews {
  TensorView statistics;  // [AuxiliaryLoss::statistics()]
  TensorView factors;     // [AuxiliaryLoss::factors()]
};

class AuxiliaryLoss {
 public:
  virtual ~AuxiliaryLoss() = default;
  // Elements per layer; more than 0.
  virtual std::int64_t statistics() const = 0;
  virtual std::int64_t factors() const = 0;

  struct Views {
    TensorView statistics;  // [layers, statistics()], of all stages, summed over all ranks
    TensorView factors;     // [layers, factors()]: written; empty without gradients
    // float32 [1]. What the layers compute from the factors is the gradient of scale * share * loss. The scale is 1 if
    // the view is empty.
    TensorView scale;
    double share = 1;         // 1 / micro-batches of the step
    TensorView loss;          // float32 [1]: (+)= share * loss
    bool accumulate = false;  // +=
  };
  // Enqueues the computation on ctx.compute(), here the auxiliary stream, which has no scratch buffer on GPUs. `ctx`
  // has no weights and no batch.
  virtual void run(LayerContext& ctx, const Views& views) const = 0;
};

}  // namespace hawser::nn
