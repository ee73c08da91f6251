// `SavePolicy`: what a layer saves from forward for backward, and what it computes again. `SavedSpec`: one such tensor.
//
// Example: an MLP of width C and inner width F with T rows in bf16.
//
//   Checkpointing::none        forward saves 1 / RMS [T], norm(x) [T, C], gate and up [T, 2 F], SwiGLU [T, F]
//   Checkpointing::selective   forward saves 1 / RMS, gate and up; backward computes norm(x) and SwiGLU again
//   Checkpointing::full        forward saves nothing; before backward, recompute computes norm(x), gate and up again
//
// The executor keeps x, except with Checkpointing::block, where recompute of the layer before writes it again.
//
// docs/design/activations.md has the same of attention.
#pragma once

#include <array>
#include <vector>

#include "base/training_options.h"
#include "nn/layer_context.h"

namespace hawser::nn {

// The passes over a layer, in order.
enum class Pass { forward, recompute, backward, backward_weight };

// A tensor that a layer saves between passes. It is written in one pass and last read in another.
struct SavedSpec {
  const char* name;
  DType dtype;
  Shape shape;  // no dimensions: the tensor is not saved
  Pass writer;
  Pass last_reader;
};

struct SavePolicy {
  Checkpointing checkpointing = Checkpointing::none;
  // Gradients of GEMM weights are computed in a separate pass, backward_weight: what they read is saved until then.
  bool delay_weight_gradients = false;
  // What forward saves, and the layer's input, are copied to host memory after forward and back before backward.
  bool offload = false;
  // Not 0: a layer whose rows are independent runs in tiles of this many rows, saves its input alone, and computes in
  // backward what that reads, whatever `checkpointing` says (nn/row_tiles.h). Without delay_weight_gradients.
  std::int64_t tile_rows = 0;
  // By Site: the format of the layer's Linears, or experts. What a layer saves may depend on it.
  std::array<LinearFormat, kSites> formats = {};

  // What only the gradient of such a Linear's weight reads is saved as it reads it: transposed, in FP8, with a scale,
  // where the layer can (nn/blocks/linear_input.h). The results are the same. Needs a quantizer of FP8.
  bool fp8_inputs = false;

  LinearFormat format(Site site) const { return formats[static_cast<std::size_t>(site)]; }

  // What is recomputed. Layer::recompute runs again each GEMM and the attention whose predicate below is true, and
  // the norm before such a GEMM. It saves that norm's output for backward, unless delay_weight_gradients is set or no
  // weight that reads it is trained.
  // SwiGLU, and every norm whose output is not saved, run again inside the pass that needs them: backward or
  // backward_weight. recomputes_pointwise(): norms and SwiGLU.
  // With NormPlace::sandwich and post, recompute also runs the last GEMM again if it has the input: an MLP's if
  // recomputes_gate_up(), that of attention with recomputes_attention(). Norms of q and k are never saved: they run in
  // each pass with attention.
  bool recomputes_pointwise() const { return checkpointing != Checkpointing::none; }
  bool recomputes_gate_up() const;
  bool recomputes_qkv() const;
  bool recomputes_attention() const;
  // Recompute also writes the layer's output, if a layer of the same block reads it: its input is not kept.
  bool recomputes_output() const { return checkpointing == Checkpointing::block; }
};

// The views of a layer's saved tensors for one micro-batch. tensors[i] belongs to saved_specs()[i]. It is empty if the
// policy does not save it, or outside the passes from its writer to its last reader; the layer then uses a temp.
struct Saved {
  TensorView x;  // the layer's input, saved by the caller
  std::vector<TensorView> tensors;
};

inline bool SavePolicy::recomputes_attention() const {
  return checkpointing == Checkpointing::full || checkpointing == Checkpointing::block;
}
inline bool SavePolicy::recomputes_gate_up() const {
  return checkpointing == Checkpointing::gate_up || checkpointing == Checkpointing::projections ||
         recomputes_attention();
}
inline bool SavePolicy::recomputes_qkv() const {
  return checkpointing == Checkpointing::qkv || checkpointing == Checkpointing::projections || recomputes_attention();
}

}  // namespace hawser::nn
