// The tensors that a layer of a block writes between its passes, saved or not.
#pragma once

#include "nn/blocks/linear.h"

namespace hawser::nn {

struct TensorSpec {
  const char* name;
  DType dtype;
  Shape shape;
};

// `index` of what is saved in this pass, or a temporary of `spec`.
TensorView saved_or_temp(LayerContext&, const Saved&, int index, const TensorSpec& spec);

SavedSpec saved_spec(const TensorSpec&, Pass writer, Pass last_reader);
SavedSpec unsaved_spec(const TensorSpec&);
// The last pass that reads what backward and, if `weights`, the gradients of GEMM weights read.
Pass last_reader(const SavePolicy& policy, bool weights);
// The normed rows that a layer's first GEMM reads. `weights`: the gradients of its weights read them, otherwise no pass
// after that GEMM does. Saved by forward; or, if recompute writes them, until backward has read them; or absent, and
// backward recomputes them from the statistics.
SavedSpec normed_spec(const TensorSpec&, const SavePolicy& policy, bool recomputed, bool weights);
// What a norm knows of each row (Norm::statistics). A delayed weight gradient recomputes the normed rows from it if
// they are not saved.
SavedSpec statistics_spec(const TensorSpec&, const SavePolicy& policy, bool recomputed, bool weights);
// The gradient of a GEMM's output: saved for delayed gradients of its weights alone, if there are any.
SavedSpec output_gradient_spec(const TensorSpec&, const SavePolicy& policy, bool weights);
// The rows that a layer's last GEMM reads, which an activation has computed. Saved by forward; or by backward, which
// recomputes them, for delayed gradients of the GEMM's weights. `weights`: as in normed_spec.
SavedSpec inner_spec(const TensorSpec&, const SavePolicy& policy, bool weights);
// AdapterTensors::inner of a Linear, for the gradients of its adapters; no elements if there is none. `recomputed`: the
// Linear runs again in recompute.
TensorSpec adapters_tensor(const char* name, const Linear& linear, const RowCounts& rows, DType dtype);
SavedSpec adapters_spec(const TensorSpec&, const SavePolicy& policy, bool recomputed, const Linear& linear,
                        const TrainableParams& trainable);

}  // namespace hawser::nn
