// The tensors that a layer of a block writes between its passes, saved or not.
#pragma once

#include "nn/layer.h"

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
// The normed rows that a layer's first GEMM reads. Saved by forward; or, if recompute writes them, until backward has
// read them; or absent, and backward recomputes them from the statistics.
SavedSpec normed_spec(const TensorSpec&, const SavePolicy& policy, bool recomputed);
// What a norm knows of each row (Norm::statistics). A delayed weight gradient recomputes the normed rows from it if
// they are not saved.
SavedSpec statistics_spec(const TensorSpec&, const SavePolicy& policy, bool recomputed);
// The gradient of a GEMM's output: saved for a delayed weight gradient alone.
SavedSpec output_gradient_spec(const TensorSpec&, const SavePolicy& policy);

}  // namespace hawser::nn
