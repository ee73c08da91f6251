// `Layer`, `LayerContext`: the contract between layers and the executor.
//
// A layer is written as if the model were on one device. It holds sizes and names, no state: everything it reads or
// writes in a call is a view that the caller planned. Shapes: T rows (tokens of this rank's micro-batch), C width.
#pragma once

#include <string>
#include <vector>

#include "base/recipe.h"
#include "nn/param.h"
#include "nn/seams.h"
#include "tensor/tensor.h"

namespace hawser::nn {

// A micro-batch on the device. Rows are in this rank's local order: by sequence, then by chunk.
struct BatchViews {
  TensorView ids;                       // i32 [T]
  TensorView labels;                    // i32 [T], already shifted; negative: no target
  TensorView positions;                 // i32 [T], restarting in each document
  TensorView diagonal, diagonal_count;  // i32 [N, 6], i32 [1]: segments, pieces of documents against their own rows
  TensorView off_diagonal,
      off_diagonal_count;  // i32 [M, 6], i32 [1]: segments against a document's earlier rows, in sequence order
  // i32 [T * context]: for each row in sequence order, the index of its K row in the gathered [context, 2, T] buffer of
  // K and V rows; its V row is T further. Only with context parallelism.
  TensorView gather_index;
  TensorView logit_positions;  // i32 [B]: rows whose logits are computed. Only with step::Purpose::logits
  // i32 [T]: the KV cache slot that each row is written to, or ops::kNoRow (padding). Keys of diagonal blocks are then
  // slots of the KV cache. Only with a KV cache (nn/kv_cache.h).
  TensorView slot_mapping;
  // The tables' contents if the host knows them when it enqueues, else null (ops::AttentionForward::host_segments).
  const std::vector<std::int32_t>*host_diagonal = nullptr, *host_off_diagonal = nullptr;
  // > 0: each sequence is one document, from its first row on. Diagonal blocks begin at multiples of this number of
  // rows, none is longer, and rows outside of them hold finite numbers. With context parallelism these are the chunks
  // of a zig-zag: every sequence has two on a rank, and a chunk's off-diagonal block is all of the sequence before it.
  std::int64_t uniform_diagonal = 0;
  bool off_diagonal_apart = false;                    // no key row is in two off-diagonal blocks
  double diagonal_pairs = 0, off_diagonal_pairs = 0;  // max visible query-key pairs per head (for FLOPs)
};

// A layer's KV cache, [rows, kv_heads, D] in the compute dtype. It outlives a pass. Empty if there is none.
struct KvCache {
  TensorView k, v;
};

// The batches of the diagonal blocks' call, over this rank's T rows.
std::vector<ops::SegmentBatch> diagonal_batches(const BatchViews& batch, std::int64_t rows);

// Where a parameter's gradient is written, decided before the GEMM runs.
struct GradientTarget {
  TensorView view;  // float32 or bf16, the parameter's shape; empty: not needed
  bool accumulate = false;
};

class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // Called once per use; `param` is the index in the layer's parameters.
  virtual GradientTarget target(int param) = 0;
};

// What the caller provides for one call.
class LayerContext {
 public:
  virtual ~LayerContext() = default;
  // A planned, dense buffer with undefined contents. Valid at least until the instruction's last use of it.
  virtual TensorView temp(DType dtype, const Shape& shape) = 0;
  virtual Stream& compute() = 0;
  virtual Stream& exchange() = 0;  // communication inside layers
  virtual const BatchViews& batch() const = 0;
  virtual const Seams& seams() const = 0;
  virtual const TensorView& weight(int param) const = 0;   // in the compute dtype
  virtual const TensorView& rope_frequencies() const = 0;  // f32 [D / 2]
  virtual DType dtype() const = 0;                         // of activations
  virtual int threads() const = 0;                         // of the compute stream (CPU)
  virtual bool deterministic() const { return false; }     // attention gradients are bitwise repeatable (CUDA)
  virtual KvCache kv_cache() const { return {}; }          // of the layer that is running; for its attention seam
  // One stream waits for the work that the other has enqueued so far.
  void exchange_after_compute() { exchange().wait(compute().record()); }
  void compute_after_exchange() { compute().wait(exchange().record()); }
};

// The passes over a layer; a slot has one that writes it and a last one that reads it.
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
  bool keep_attention = false;  // with full: attention output and log-sum-exp are saved anyway (long sequences)
  bool delay_weights = false;   // weight gradients run in a separate pass: what they read outlives backward

  // What is recomputed. Backward recomputes norms and SwiGLU itself, Layer::recompute the rest.
  bool recomputes_pointwise() const { return checkpointing != Checkpointing::none; }
  bool recomputes_gate_up() const;
  bool recomputes_qkv() const;
  bool recomputes_attention() const { return checkpointing == Checkpointing::full && !keep_attention; }
};

// The views of a layer's saved tensors for one micro-batch. `slots` is parallel to Layer::slots(). A slot that the
// policy does not save, or whose writing pass has not run yet, is empty, and the layer uses a temp.
struct Saved {
  TensorView x;  // the layer's input, saved by the caller
  std::vector<TensorView> slots;
};

class Layer {
 public:
  virtual ~Layer() = default;
  virtual const std::vector<Param>& params() const = 0;
  // The saved tensors for T rows under a policy; entry i is slot i of the layer, with an empty shape if not saved.
  virtual std::vector<Slot> slots(std::int64_t rows, DType dtype, const SavePolicy& policy) const = 0;
  // y = layer(x). Writes the slots whose writer is forward.
  virtual void forward(LayerContext&, const TensorView& x, const TensorView& y, const Saved&) const = 0;
  // Writes the slots whose writer is recompute, from x and what forward saved; called only if recomputes() is true.
  virtual void recompute(LayerContext&, const Saved&, const SavePolicy&) const = 0;
  // Computes dx from dy. With delay_weights, backward_weight computes the gradients of GEMM weights. May overwrite
  // saved tensors unless backward_weight reads them.
  virtual void backward(LayerContext&, const TensorView& dy, const TensorView& dx, const Saved&, GradientSink&,
                        const SavePolicy&) const = 0;
  virtual void backward_weight(LayerContext&, const TensorView& dy, const Saved&, GradientSink&) const = 0;
  // Model FLOPs of forward for T rows and the given number of visible query-key pairs; GEMMs and attention only.
  virtual double flops(std::int64_t rows, double pairs) const = 0;
};

// True if a layer has a recompute pass under a policy: recompute writes some slot.
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
