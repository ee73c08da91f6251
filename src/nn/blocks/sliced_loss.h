// `sliced_loss`: cross-entropy of a projection whose vocabulary is sliced over the tensor ranks (Megatron-LM,
// arXiv 1909.08053). Formulas: ops/loss/sliced_logits.h.
#pragma once

#include <optional>

#include "nn/blocks/linear.h"

namespace hawser::nn {

// Float32, on the device.
struct LossViews {
  TensorView inverse_targets;  // [1]: 1 / number of valid targets of the step: scales all gradients
  TensorView sum;              // [2] (high and low part): += sum over valid targets of -log p(label)
};

// Logits h W^T + b, soft-capped with `softcap`, of which this rank has the columns `vocabulary`, as many as
// every other, padding included.
struct SlicedProjection {
  Linear linear;  // without bias
  DimSlice vocabulary;
  TensorView bias;  // [V]: of this rank's columns. It is empty if the projection has none.
  std::optional<double> softcap;
  // Of a chunk of rows; absent: 1 GiB on CUDA, where GEMMs of fewer rows are slower, otherwise 256 MiB.
  std::optional<std::int64_t> logit_bytes;
};
struct ProjectionGradients {
  GradientTarget weight, bias;  // of W [V, C] and b [V]
};

// The loss of these logits. h [RowCounts::residual, C], labels of RowCounts::full rows; the Redistribute seam gathers h
// and sums dh, in one order on all ranks. Every rank adds the complete loss to views.sum. dh: the gradient of h; empty:
// only the loss. bf16 gradients of W and b are summed in float32 over the chunks of rows. All ranks have the same
// chunks: as few as keep the float32 logits of a rank's columns within `logit_bytes`, or have 32 rows, and equally
// long. The logits of a chunk are written once, and one TensorReduce::gather exchanges its statistics.
void sliced_loss(LayerContext&, const SlicedProjection& projection, const TensorView& h, const TensorView& dh,
                 const LossViews& views, const ProjectionGradients& gradients);

}  // namespace hawser::nn
