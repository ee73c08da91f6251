// The input of a Linear: how an op of the layer writes it, and what is saved of it for the gradient of the weight.
//
// A Linear with a format (SavePolicy::formats) rounds its input twice, to what the product reads and, transposed, to
// what the weight's gradient reads. Here the op that computes the input writes both, in place of the input, if it can
// and the scale is known before; SavePolicy::fp8_inputs saves the latter, which has half the bytes of bf16. Everything
// is enqueued on the compute stream; the bits are those of Linear::quantized.
#pragma once

#include <functional>

#include "nn/blocks/linear.h"
#include "nn/blocks/saved_tensors.h"

namespace hawser::nn {

// With SavePolicy::fp8_inputs: the input of this Linear is saved in FP8. Not with adapters, which read it in
// LayerContext::dtype(), nor if ranks redistribute it.
bool saves_fp8(const SavePolicy& policy, const Linear& linear, const RowCounts& rows);
// The same matrix [T, C] as it is saved then: FP8 [C, T].
TensorSpec fp8_spec(const TensorSpec& matrix);
// Its scales, float32: [1], or with LinearFormat::fp8_block one for each 128 tokens of a column. Saved from and until
// the same passes. `format`: of the Linear's site.
SavedSpec scale_spec(const char* name, const SavedSpec& matrix, LinearFormat format);

// Views of what is saved: the matrix [T, C] in LayerContext::dtype(), or FP8 [C, T] and its scales; or nothing.
struct SavedInput {
  TensorView matrix, scale;
  TensorView unsaved = {};  // [T, C] in LayerContext::dtype(): written if it is not saved so, or a temporary if empty

  bool in_fp8() const { return !scale.empty(); }
  Scaled read() const;  // as the gradient of the weight reads it
};

// The op that computes the input.
struct InputWriter {
  // Writes `y` [T, C] in LayerContext::dtype(), or if y is empty the same matrix as `fp8`.
  std::function<void(const TensorView& y, const ops::Fp8Output& fp8)> write;
  bool writes_fp8 = false;  // it can do the latter
};

// Computes the input [T, C] once and returns it as `reader` reads it: product in forward and recompute, which also
// writes `saved`, or weight_gradient, where it is not saved.
Scaled write_input(LayerContext&, const Linear&, const Shape& shape, const SavedInput& saved, Linear::ReadBy reader,
                   const InputWriter& writer);

// Where an op writes an x or a dy of the Linear in FP8 in place of the matrix, as `reader` reads it; x: what SavedInput
// saves in FP8, too. It cannot if the Linear has no format, adapters or a bias read the matrix, or the scale follows
// from it.
std::optional<ops::Fp8Output> fp8_output(LayerContext&, const Linear&, Operand operand, const Shape& shape,
                                         Linear::ReadBy reader, const SavedInput& saved = {});
inline Scaled scaled_of(const ops::Fp8Output& output) {
  return {output.q, output.used, output.transposed};
}

}  // namespace hawser::nn
