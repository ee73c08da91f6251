// `merge_adapters`: a model's weights with its adapters added to them, for an export that other programs read without
// knowing of adapters.
#pragma once

#include "models/weights.h"

namespace hawser::models {

// The states of `model` that `source` has, without its adapters: the matrix of each Linear that they adapt is
//   W + sum over adapters without a magnitude of s B A
//     + sum over adapters with one of (m / norms of the rows of W + s B A) * (W + s B A) - W
// in float64, rounded to float32 once. Other tensors are as `source` has them. `model` outlives the result. The result
// reads complete rows of W, and all of A; it is for export_folder with the model without adapters. Dropout has no part
// in it. UserError if a merged matrix is not finite.
StateSource merge_adapters(const Model& model, StateSource source);

}  // namespace hawser::models
