// `Layer`, `LayerContext`: the contract between layers and the executor.
//
// A layer is written as if the model were on one device. It holds sizes and names, no state: everything it reads or
// writes in a call is a view that the caller provides. Shapes: T rows (tokens of this rank's micro-batch; which of them
// a tensor has on this rank: RowCounts), C width.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/attention_mask.h"
#include "base/training_options.h"
#include "nn/auxiliary_loss.h"
#include "nn/param.h"
#include "nn/quantizer.h"
#include "nn/scaled.h"
#include "nn/seams.h"
#include "ops/dropout/dropout.h"
#include "tensor/batch_table.h"
#include "tensor/tensor.h"

namespace hawser::nn {

// What depends on the mask of an attention layer (AttentionConfig::mask).
struct MaskViews {
  AttentionMask mask;
  // i32 [M, 6], i32 [1]: off-diagonal blocks. A segment has the queries of a diagonal segment and, as keys, all rows of
  // the same document before them; with a mask that is not causal, all rows of the document, the queries' own included.
  // Its key rows index the keys of all ranks in sequence order: one sequence after another, each with all its rows.
  // With a causal mask and a window, queries that see no key and keys that no query sees are left out; unless
  // uniform_diagonal is set, the table then has the two halves of ops::AttentionCall::window_halves. Only with context
  // parallelism.
  TensorView off_diagonal, off_diagonal_count;
  // The table's contents if the host knows them when it enqueues, else null (ops::AttentionCall::host_segments).
  const std::vector<std::int32_t>* host_off_diagonal = nullptr;
  // i32 [S * M, 6], i32 [S]: the same segments by the rank that has the keys, without those of `diagonal`; key rows are
  // that rank's. Table i has the keys of rank i / (S / R) of the ring: of its part i % (S / R), a chunk of each
  // sequence if the mask has a window or distances, otherwise all of its rows. M and the halves are those of
  // off_diagonal. Without a window, every query of a segment sees every key, whose positions may have gaps unless the
  // mask has distances. With a mask that is not causal, this rank's own keys are in the tables, too. Only if
  // BatchShape::source_segments.
  TensorView by_source, by_source_count;
  // The contents of each table if the host knows them when it enqueues, else null.
  const std::vector<std::vector<std::int32_t>>* host_by_source = nullptr;
  // Query-key pairs per head for OpRecord::flops, the same for every micro-batch: the visible pairs of full sequences
  // of one document, divided by R (BatchViews); diagonal_pairs: those of diagonal blocks, unless off_diagonal has them.
  // Of each table by source, off_diagonal_pairs / S: the mean, as all ranks have one plan. With a KV cache, every new
  // row is counted as if it attended to a sequence of the maximum length. Padding and packed documents, which reduce
  // the pairs that are really computed, are ignored.
  double diagonal_pairs = 0, off_diagonal_pairs = 0;
};

// A micro-batch on the device: T rows of this rank, ordered by sequence, then by chunk of the sequence. Segment tables
// are those of ops/attention/attention.h. In shapes below, `context` is the number of ranks of the context group.
//
// With two-dimensional context parallelism, U ranks (comm::MeshSizes::context_heads) have the same rows in attention,
// each some of the heads. A rank of the ring, of R = context / U, has the U T rows of its U ranks. Segment tables,
// gather_index and the members that say so are of these rows; without it, U = 1 and they are the rank's.
struct BatchViews {
  TensorView ids;        // i32 [T]
  TensorView labels;     // i32 [T], already shifted; negative: no target
  TensorView positions;  // i32 [T], restarting in each document
  // i32 [N, 6], i32 [1]: diagonal blocks. In a segment, the query rows and the key rows are the same rows: a piece of
  // one document, contiguous in the sequence, that this rank holds. It is in one chunk or spans several chunks that are
  // adjacent in the sequence. Each row of a document is a query row of exactly one diagonal segment, a padding row of
  // none: the table is also the mask of the rows that are no padding.
  // With a KV cache, a segment has the new queries of a sequence and all its keys so far, including the new ones.
  TensorView diagonal, diagonal_count;
  // i32 [sum of M, 6], i32 [masks]: MaskViews::off_diagonal of all masks, one after another.
  TensorView off_diagonal, off_diagonal_count;
  // i32 [sum of S * M, 6], i32 [sum of S]: MaskViews::by_source of all masks, one after another.
  TensorView by_source, by_source_count;
  // One for each distinct mask of the model's attention layers.
  std::vector<MaskViews> masks;
  // i32 [T * context]: for each row in sequence order, the index of its K row in the all-gathered buffer, whose rows
  // are [R, 2, U T] (2: K, V). The index of its V row is greater by U T. Only with R > 1.
  TensorView gather_index;
  // i32 [U T]: for each row of this rank of the ring, in its order, the index of the row in [U, T]: the rows of its
  // ranks, one after another. Only with U > 1.
  TensorView heads_index;
  TensorView logit_positions;  // i32 [B]: rows whose logits are computed. Only with step::Purpose::logits
  // i32 [T]: the KV cache slot that the K and V of each row are written to, or ops::kNoRow (padding). k_begin of
  // `diagonal` then indexes KV cache slots. Only with a KV cache (nn/kv_cache.h).
  TensorView slot_mapping;
  // i32 [T, 2]: number of the row's sequence in the step, and the row's index in the sequence. Padding rows have what
  // the sequence would have there. Only if the step draws random numbers (Layer::draws_random_numbers).
  TensorView row_ids;
  // i32 [context * T, 2]: row_ids of all ranks, in sequence order, and one rank of the ring after another. Only with
  // row_ids and BatchShape::all_row_ids.
  TensorView sequence_row_ids, source_row_ids;
  // i32 [U T, 2]: those of this rank of the ring. row_ids if U is 1.
  TensorView attention_row_ids;
  TensorView
      token_mask;  // i32 [T]: 1: the row is a token, 0: padding. Only if a layer reads it (Layer::reads_token_mask)
  // Those that the model declares (models::ModelDescription::tables), by name: TableSpec::shape(T), or, with an entry
  // for each of the S sequences of a micro-batch, shape(S). Row t of the T is of sequence t / (T / S).
  std::map<std::string, TensorView, std::less<>> tables;
  // The contents of `diagonal` if the host knows them when it enqueues, else null (ops::AttentionCall::host_segments).
  const std::vector<std::int32_t>* host_diagonal = nullptr;
  // Length of a chunk in rows, if every sequence holds exactly one document, which begins at row 0, and all sequences
  // are cut into chunks at the same rows; otherwise 0. Rows after the document's end are padding, with finite values.
  // If it is not 0, chunks that follow each other on this rank are not joined into one diagonal segment: every diagonal
  // block is in one chunk, so it begins at a multiple of this length and is at most this long. In a zig-zag, a rank of
  // the ring has two chunks of each sequence, and a chunk's off-diagonal block has as keys all rows of the sequence
  // before the chunk.
  std::int64_t uniform_diagonal = 0;
  bool off_diagonal_disjoint_keys = false;  // no key row is in two off-diagonal blocks of a causal mask's table

  const MaskViews& with_mask(const AttentionMask& mask) const;  // InternalError if there is none
  // One of `tables`. InternalError if the model does not declare it, or with another dtype.
  const TensorView& table(std::string_view name, DType dtype) const;
};

// One of ModelDescription::ropes.
struct RopeViews {
  TensorView frequencies;    // float32 [R / 2], R the rotated dims of a head
  bool interleaved = false;  // ops::Rope::interleaved
};

// A layer's KV cache: k, v [slots, kv_heads, D] in the compute dtype, one slot per token. It outlives a pass. Empty if
// there is none.
struct KvCache {
  TensorView k, v;
};

// AttentionCall::blocks for a call over `diagonal`, with the `rows` of attention, U T; empty if uniform_diagonal is 0,
// or if the mask is not causal: keys after a sequence's end would be visible.
std::vector<ops::StridedBlocks> diagonal_blocks(const BatchViews& batch, const AttentionMask& mask, std::int64_t rows);

// Where the gradient of a parameter is written. The caller decides it before the layer enqueues the GEMM.
struct GradientTarget {
  TensorView view;  // float32 or bf16, the parameter's shape; empty: not needed
  bool accumulate = false;
};

class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // In one pass, the layer calls it once for each gradient that it writes, before it enqueues the op that writes it.
  // accumulate is true if an earlier pass of the step has written to the same gradient buffer: an earlier micro-batch
  // with local accumulation, or another layer that uses the parameter (Param::shared). `param` is the index in the
  // layer's parameters.
  virtual GradientTarget target(int param) = 0;
};

// A place in a layer: with the layer's number, the key of what belongs to it and to nothing else, such as random
// numbers. Values are part of the key: new sites go to the end.
enum class Site { qkv_projection, output_projection, up_projection, down_projection, logits, attention_probabilities };
constexpr int kSites = 5;  // the first ones, which have Linears or experts; with a new one there, all up to it
const char* to_string(Site site);

// Which parameters of a layer are trainable: those whose gradients GradientSink may want. By default all.
class TrainableParams {
 public:
  TrainableParams() = default;
  explicit TrainableParams(std::vector<bool> of) : of_(std::move(of)) {}
  // A parameter that a layer does not have (-1) is not trainable.
  bool operator()(int param) const { return param >= 0 && (of_.empty() || of_.at(static_cast<std::size_t>(param))); }

 private:
  std::vector<bool> of_;  // by index of the parameter; empty: all
};

// Rows of a micro-batch on this rank. They differ with sequence parallelism only: each tensor rank then has
// full / ranks rows of the residual.
struct RowCounts {
  std::int64_t residual = 0;  // of x, residual, y and their gradients, of norms, routers and residual additions
  std::int64_t full = 0;      // of GEMMs, attention and the tables of BatchViews
  std::int64_t first = 0;     // index of the residual's first row among the full ones, in a pass; otherwise 0
};

// Why a layer refuses a step: its results must then be finite and are not used. The step is skipped on all ranks
// (step::Skip::refused).
enum class Refusal {
  none,
  expert_rows,  // more rows for a rank's experts than TokenExchange::Sizes::row_bound allows
};
const char* to_string(Refusal refusal);

// What the caller provides for one call.
class LayerContext {
 public:
  virtual ~LayerContext() = default;
  // A dense buffer of the arena with undefined contents. The layer may use it in all ops that it enqueues in this
  // instruction, and not in a later instruction: the planner reuses its bytes after the last of these ops.
  virtual TensorView temp(DType dtype, const Shape& shape) = 0;
  virtual Stream& compute() = 0;
  virtual Stream& exchange() = 0;  // communication inside layers
  virtual const BatchViews& batch() const = 0;
  virtual RowCounts rows() const = 0;
  virtual const Seams& seams() const = 0;
  virtual const Scaled& parameter(int param) const = 0;
  // The view of a parameter that has no scale. Only Linears and experts read scaled and packed ones; InternalError.
  const TensorView& weight(int param) const {
    const Scaled& weight = parameter(param);
    HAWSER_CHECK(weight.scale.empty(), "parameter ", param, " of this layer cannot have a scale");
    HAWSER_CHECK(values_per_element(weight.view.dtype()) == 1, "parameter ", param, " of this layer cannot be ",
                 to_string(weight.view.dtype()));
    HAWSER_CHECK(!weight.view.empty(), "parameter ", param, " of this layer is read transposed only");
    return weight.view;
  }
  virtual RopeViews rope(int i) const = 0;  // ModelDescription::ropes[i]
  // Float32 [heads of this tensor rank]: ops::alibi_slopes of the running layer, with AttentionConfig::alibi.
  virtual TensorView alibi_slopes() const { return {}; }
  // Of the layer that is running: the same in all its passes, and in saved_specs(). GradientSink::target() of another
  // parameter is empty, and no pass computes what only its gradient needs.
  virtual const TrainableParams& trainable() const = 0;
  virtual DType dtype() const = 0;                      // of activations
  virtual int threads() const = 0;                      // of the compute stream (CPU)
  virtual bool deterministic() const { return false; }  // attention gradients are bitwise repeatable (CUDA)
  virtual bool training() const { return false; }       // dropout is active: the step updates parameters
  // The random numbers of a site in this step: the same in every pass, on every rank and mesh, with any micro-batch
  // size; RandomKey::rows are those of the full rows. `index`: of the adapter that draws. Only with training().
  virtual ops::RandomKey random(Site site, int index = 0) const = 0;
  // How an operand of the Linear at this site is quantized in this pass: by its format in SavePolicy::formats. The amax
  // is empty outside of training; for x in all passes but forward, for dy in all but backward.
  virtual Quantization quantization(Site, Operand) const { return {}; }
  virtual KvCache kv_cache() const { return {}; }          // of the layer that is running; for its attention seam
  virtual AuxiliaryViews auxiliary() const { return {}; }  // of the layer that is running
  // float32 [1], 0 at the begin of a step: a layer with Layer::may_refuse() or a seam of it writes a Refusal to it, in
  // stream order with the compute stream, and otherwise does not write. The step has the largest of all ranks.
  virtual TensorView refusal() const { return {}; }
  // One stream waits for the work that the other has enqueued so far.
  void exchange_after_compute() { exchange().wait(compute().record_event()); }
  void compute_after_exchange() { compute().wait(exchange().record_event()); }
};

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
  // By Site: the format of the layer's Linears, or experts. What a layer saves may depend on it.
  std::array<LinearFormat, kSites> formats = {};

  // What only the gradient of such a Linear's weight reads is saved as it reads it: transposed, in FP8, with a scale,
  // where the layer can (nn/blocks/linear_input.h). The results are the same. Needs a quantizer of FP8.
  bool fp8_inputs = false;

  LinearFormat format(Site site) const { return formats[static_cast<std::size_t>(site)]; }

  // What is recomputed. Layer::recompute runs again each GEMM and the attention whose predicate below is true, and
  // the norm before such a GEMM. It saves that norm's output for backward, unless delay_weight_gradients is set.
  // SwiGLU, and every norm whose output is not saved, run again inside the pass that needs them: backward or
  // backward_weight. recomputes_pointwise(): norms and SwiGLU.
  // With NormPlace::sandwich and post, recompute also runs the last GEMM again if it has the input: an MLP's if
  // recomputes_gate_up(), that of attention with full. Norms of q and k are never saved: they run in each pass with
  // attention.
  bool recomputes_pointwise() const { return checkpointing != Checkpointing::none; }
  bool recomputes_gate_up() const;
  bool recomputes_qkv() const;
  bool recomputes_attention() const { return checkpointing == Checkpointing::full; }
};

// The views of a layer's saved tensors for one micro-batch. tensors[i] belongs to saved_specs()[i]. It is empty if the
// policy does not save it, or outside the passes from its writer to its last reader; the layer then uses a temp.
struct Saved {
  TensorView x;  // the layer's input, saved by the caller
  std::vector<TensorView> tensors;
};

// What Layer::update() changes and reads.
struct LayerUpdate {
  // float32: this rank's shard of a parameter's flat, with element i of the parameter at first + i, if that is inside.
  struct Shard {
    TensorView values;
    std::int64_t first = 0;
  };
  std::vector<Shard> params;  // by index; empty: not FlatSpec::updated_by_layer
  // Of the step, summed over its micro-batches and all ranks, equal on all ranks: [AuxiliaryLoss::statistics()].
  TensorView statistics;
  TensorView skip;  // i32 [1]: if not 0, nothing changes
};

class Layer {
 public:
  virtual ~Layer() = default;
  virtual const std::vector<Param>& params() const = 0;
  // The saved tensors under a policy. Their number and order do not depend on the policy, nor on what is
  // trainable. What only the gradients of frozen parameters would read is not saved. `seams`: of the passes.
  virtual std::vector<SavedSpec> saved_specs(const RowCounts& rows, DType dtype, const SavePolicy& policy,
                                             const TrainableParams& trainable, const Seams& seams) const = 0;
  // x, residual, y, dy, dresidual, dx: dense [RowCounts::residual, C] in LayerContext::dtype(). y and dx overlap no
  // other; those that are read are not changed. The residual addition is part of a layer. In a serial block residual is
  // x, and dresidual dy. In a parallel block all layers read the block's input x, and each adds to the sum that the one
  // before has written. With one norm for all (Param::shared) each layer computes norm(x) itself.
  // With NormPlace::post, y = norm(residual + f(x)): backward then writes the complete gradient of x, which is the
  // residual, to dx and does not read dresidual. Only in serial blocks.
  // y = residual + f(x). Writes the saved tensors whose writer is forward.
  virtual void forward(LayerContext&, const TensorView& x, const TensorView& residual, const TensorView& y,
                       const Saved&) const = 0;
  // Writes the saved tensors whose writer is recompute, from x and what forward saved. Called only if recomputes() is
  // true.
  virtual void recompute(LayerContext&, const Saved&, const SavePolicy&) const = 0;
  // dx = dresidual + the gradient of f(x) from dy; and the parameters' gradients. With delay_weight_gradients,
  // backward_weight computes those of GEMM weights. May overwrite saved tensors unless backward_weight reads them.
  // backward_weight is called only if a parameter is trainable.
  virtual void backward(LayerContext&, const TensorView& dy, const TensorView& dresidual, const TensorView& dx,
                        const Saved&, GradientSink&, const SavePolicy&) const = 0;
  virtual void backward_weight(LayerContext&, const TensorView& dy, const Saved&, GradientSink&) const = 0;
  // The parameters, by index, that are the weight of the Linear, or the experts, at this site, whose operands may be
  // quantized (Param::of_linear). Empty: the layer has none there.
  virtual std::vector<int> linear_weights(Site) const { return {}; }
  // Once a training step, after the last update of the optimizer: changes the parameters with
  // FlatSpec::updated_by_layer, by their elements and values that are equal on all ranks, so that the result does not
  // depend on the shards.
  virtual void update(Stream& /*compute*/, const LayerUpdate&) const {}
  virtual bool draws_random_numbers() const { return false; }    // calls LayerContext::random() while training
  virtual bool reads_token_mask() const { return false; }        // BatchViews::token_mask
  virtual bool may_refuse(const Seams&) const { return false; }  // LayerContext::refusal()
  // The loss that the layer adds to the model's, one object for all layers of a model; null: none.
  virtual const AuxiliaryLoss* auxiliary_loss() const { return nullptr; }
  // Model FLOPs of forward for a rank's rows and the given number of visible query-key pairs; GEMMs and attention only.
  virtual double flops(const RowCounts& rows, double pairs) const = 0;
  // Of an attention layer; `pairs` of flops() depends on its mask. Empty: no attention.
  virtual std::optional<AttentionShape> attention_shape() const { return std::nullopt; }
};

// All that a layer saves: Layer::saved_specs, then of an attention layer AttentionExchange::saved_tensors, from the last
// pass that computes attention (forward or recompute) to backward.
std::vector<SavedSpec> saved_specs(const Layer& layer, const Seams& seams, const RowCounts& rows, DType dtype,
                                   const SavePolicy& policy, const TrainableParams& trainable);

// True if a layer has a recompute pass under a policy: recompute writes at least one saved tensor.
bool recomputes(const Layer& layer, const SavePolicy& policy, const TrainableParams& trainable);

inline bool SavePolicy::recomputes_gate_up() const {
  return checkpointing == Checkpointing::gate_up || checkpointing == Checkpointing::projections ||
         checkpointing == Checkpointing::full;
}
inline bool SavePolicy::recomputes_qkv() const {
  return checkpointing == Checkpointing::qkv || checkpointing == Checkpointing::projections ||
         checkpointing == Checkpointing::full;
}

}  // namespace hawser::nn
