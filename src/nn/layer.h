// The contract between layers and whatever runs them.
//
// A layer is written as if the model lived on one device. It holds sizes and names, no state: everything it reads or
// writes in a call is a view that the caller planned. Shapes: T rows (tokens of this rank's micro-batch), C width.
#pragma once

#include <string>
#include <vector>

#include "base/recipe.h"
#include "nn/param.h"
#include "nn/seams.h"
#include "tensor/tensor.h"

namespace hawser::nn {

// A micro-batch on the device. Rows are in this rank's order: sequence by sequence, chunk by chunk.
struct BatchViews {
  TensorView ids;                       // i32 [T]
  TensorView labels;                    // i32 [T], already shifted; negative: predicts nothing
  TensorView positions;                 // i32 [T], restarting in each document
  TensorView diagonal, diagonal_count;  // i32 [N, 6], i32 [1]: pieces of documents against their own rows (local)
  TensorView off_diagonal,
      off_diagonal_count;  // i32 [M, 6], i32 [1]: against a document's earlier rows (sequence order)
  // i32 [T * context]: where the K row of each row of the sequence order lies in a gathered [context, 2, T] buffer of K
  // and V rows; its V row lies T further. Only with context parallelism.
  TensorView gather_index;
  TensorView logit_positions;  // i32 [B]: rows whose logits are wanted. Only with step::Purpose::logits
  // i32 [T]: the row of the KV cache that is this row's, or ops::kNoRow (padding); keys of diagonal blocks are then
  // rows of those. Only where keys and values are kept (nn/kv_cache.h).
  TensorView slot_mapping;
  // The tables' rows where the host knows them as it enqueues, else null (ops::AttentionForward::host_segments).
  const std::vector<std::int32_t>*host_diagonal = nullptr, *host_off_diagonal = nullptr;
  // > 0: one document a sequence, from its first row on; a diagonal block begins at every so many rows at most, none is longer,
  // and rows of none hold finite numbers. With context parallelism these are the chunks of a zig-zag: every sequence
  // has two on a rank, and a chunk's off-diagonal block is all of the sequence before it.
  std::int64_t uniform_diagonal = 0;
  bool off_diagonal_apart = false;                    // no key row lies in two off-diagonal blocks
  double diagonal_pairs = 0, off_diagonal_pairs = 0;  // visible query-key pairs a head, at most (recorded FLOPs)
};

// Keys and values that outlive a pass, in the compute dtype: [rows, kv_heads, D]. Empty where none are kept.
struct KvCache {
  TensorView k, v;
};

// The batches of the diagonal blocks' call over this rank's T rows.
std::vector<ops::SegmentBatch> diagonal_batches(const BatchViews& batch, std::int64_t rows);

// Where a parameter's gradient goes, decided before the GEMM runs.
struct GradientTarget {
  TensorView view;  // float32 or bf16, the parameter's shape; empty: not wanted
  bool accumulate = false;
};

class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // Asked once a use; `param` counts the layer's parameters.
  virtual GradientTarget target(int param) = 0;
};

// What the caller lends for one call.
class LayerContext {
 public:
  virtual ~LayerContext() = default;
  // A planned buffer, dense, its contents undefined. Lives at least until the row's last use of it.
  virtual TensorView temp(DType dtype, const Shape& shape) = 0;
  virtual Stream& compute() = 0;
  virtual Stream& exchange() = 0;  // communication inside layers
  virtual const BatchViews& batch() const = 0;
  virtual const Seams& seams() const = 0;
  virtual const TensorView& weight(int param) const = 0;   // in the compute dtype
  virtual const TensorView& rope_frequencies() const = 0;  // f32 [D / 2]
  virtual DType dtype() const = 0;                         // of activations
  virtual int threads() const = 0;                         // of the compute stream (CPU)
  virtual bool deterministic() const { return false; }     // gradients of attention repeat to the bit (CUDA)
  virtual KvCache kv_cache() const { return {}; }          // of the layer that is running; for its attention seam
  // The two streams wait for each other's work so far.
  void exchange_after_compute() { exchange().wait(compute().record()); }
  void compute_after_exchange() { compute().wait(exchange().record()); }
};

// Who writes a saved tensor, and who reads it last.
enum class Pass { forward, recompute, backward, backward_weight };

struct Slot {
  const char* name;
  DType dtype;
  Shape shape;
  Pass writer;
  Pass last_reader;
};

struct SavePolicy {
  Checkpointing checkpointing = Checkpointing::none;
  bool keep_attention = false;  // full: attention output and log-sum-exp are kept all the same (long sequences)
  bool delay_weights = false;   // weight gradients run apart: what they read outlives backward

  // What is made again. Norms and SwiGLU are made inside backward, the rest by Layer::recompute.
  bool recomputes_pointwise() const { return checkpointing != Checkpointing::none; }
  bool recomputes_gate_up() const;
  bool recomputes_qkv() const;
  bool recomputes_attention() const { return checkpointing == Checkpointing::full && !keep_attention; }
};

// The views of a layer's saved tensors for one micro-batch. `slots` runs parallel to Layer::slots(); a slot that its
// policy does not keep, or whose writer's pass has not come yet, is absent there, and the layer uses a temp.
struct Saved {
  TensorView x;  // the layer's input, kept by the caller
  std::vector<TensorView> slots;
};

class Layer {
 public:
  virtual ~Layer() = default;
  virtual const std::vector<Param>& params() const = 0;
  // The saved tensors for T rows under a policy; entry i is slot i of the layer, with an empty shape where not kept.
  virtual std::vector<Slot> slots(std::int64_t rows, DType dtype, const SavePolicy& policy) const = 0;
  // y = layer(x). Writes the slots whose writer is forward.
  virtual void forward(LayerContext&, const TensorView& x, const TensorView& y, const Saved&) const = 0;
  // Writes the slots whose writer is recompute, from x and what forward kept; called only where recomputes() says so.
  virtual void recompute(LayerContext&, const Saved&, const SavePolicy&) const = 0;
  // dx from dy; with delay_weights the gradients of GEMM weights are left to backward_weight. Saved tensors may be
  // overwritten unless backward_weight reads them.
  virtual void backward(LayerContext&, const TensorView& dy, const TensorView& dx, const Saved&, GradientSink&,
                        const SavePolicy&) const = 0;
  virtual void backward_weight(LayerContext&, const TensorView& dy, const Saved&, GradientSink&) const = 0;
  // Model FLOPs of forward for T rows and the given visible query-key pairs; GEMMs and attention only.
  virtual double flops(std::int64_t rows, double pairs) const = 0;
};

// Whether a layer has a recompute pass under a policy: some slot is written there.
bool recomputes(const Layer& layer, const SavePolicy& policy);

inline bool SavePolicy::recomputes_gate_up() const {
  return checkpointing == Checkpointing::gate_up || checkpointing == Checkpointing::projections ||
         checkpointing == Checkpointing::full;
}
inline bool SavePolicy::recomputes_qkv() const {
  return checkpointing == Checkpointing::qkv || checkpointing == Checkpointing::projections ||
         checkpointing == Checkpointing::full;
}

}  // namespace hawser::nn
