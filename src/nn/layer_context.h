// `LayerContext`: what the executor provides for one call of a layer: views of weights and tables, streams,
// temporaries, seams, and the random numbers and scales of this pass.
//
// A layer's forward, in outline:
//
//   const TensorView& weight = ctx.weight(kNorm);                       // [C], gathered
//   const TensorView norm = ctx.temp(ctx.dtype(), x.shape());           // bytes of the arena, planned before the run
//   const TensorView rstd = ctx.temp(DType::f32, {ctx.rows().residual});
//   ops::rms_norm_forward(ctx.compute(), {.x = x, .weight = weight, .y = norm, .rstd = rstd});
//   const auto rows = ctx.seams().redistribute->gather(ctx, norm, Redistribute::Rows::together);  // of all ranks
//
// and of its backward, for each parameter:
//
//   const GradientTarget dw = gradients.target(kNorm);                  // where, and whether to add
#pragma once

#include <string>
#include <vector>

#include "nn/auxiliary_loss.h"
#include "nn/batch_views.h"
#include "nn/quantizer.h"
#include "nn/scaled.h"
#include "nn/seams.h"
#include "ops/dropout/dropout.h"
#include "tensor/tensor.h"

namespace hawser::nn {

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

// Where the gradient of a parameter is written. The caller decides it before the layer enqueues the GEMM.
struct GradientTarget {
  TensorView view;  // float32 or bf16, the parameter's shape. It is empty if the gradient is not needed.
  bool accumulate = false;
};

class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // In one pass, the layer calls it once for each gradient that it writes, before it enqueues the op that writes it.
  // accumulate is true if an earlier pass of the step has written to the same gradient buffer: an earlier micro-batch
  // whose gradient is not reduced yet, or another layer that uses the parameter (Param::shared). `param` is the index
  // in the layer's parameters.
  virtual GradientTarget target(int param) = 0;
};

// A place in a layer. The number of the layer and the site identify a Linear. They are the key of the random numbers
// that are drawn at the place, so the numbers of sites must not change.
enum class Site { qkv_projection, output_projection, up_projection, down_projection, logits, attention_probabilities };
constexpr int kSites = 5;  // the first sites have Linears or experts: a Linear's site is one of them
const char* to_string(Site site);

// Which parameters of a layer are trainable: those whose gradients GradientSink may want. By default all.
class TrainableParams {
 public:
  TrainableParams() = default;
  explicit TrainableParams(std::vector<bool> of) : of_(std::move(of)) {}
  // A parameter that a layer does not have (-1) is not trainable.
  bool operator()(int param) const { return param >= 0 && (of_.empty() || of_.at(static_cast<std::size_t>(param))); }

 private:
  std::vector<bool> of_;  // by index of the parameter. An empty list is as one of true.
};

// Rows of a micro-batch on this rank. They differ with sequence parallelism only: each tensor rank then has
// full / ranks rows of the residual.
struct RowCounts {
  std::int64_t residual = 0;  // of x, residual, y and their gradients, of norms, routers and residual additions
  std::int64_t full = 0;      // of GEMMs, attention and the tables of BatchViews
  std::int64_t first = 0;     // of a pass: the residual's first row, as an index among the full ones
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
  // A temp of an op. It is empty if the op needs no bytes.
  TensorView workspace(std::int64_t bytes) { return bytes > 0 ? temp(DType::u8, {bytes}) : TensorView(); }
  virtual Stream& compute() = 0;
  virtual Stream& exchange() = 0;  // communication inside layers
  virtual const BatchViews& batch() const = 0;
  virtual RowCounts rows() const = 0;
  virtual const Seams& seams() const = 0;
  virtual const Scaled& parameter(int param) const = 0;
  // The view of a parameter as it is. Throws InternalError if it is scaled, packed or there is only its transpose,
  // which Linears and experts read.
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
  // How an operand of the Linear at this site is quantized in this pass: by its format in SavePolicy::formats. In
  // training, forward has an amax for x, and backward for dy; otherwise it is empty.
  virtual Quantization quantization(Site, Operand) const { return {}; }
  virtual KvCache kv_cache() const { return {}; }          // of the layer that is running; for its attention seam
  virtual AuxiliaryViews auxiliary() const { return {}; }  // of the layer that is running
  // float32 [1], 0 at the begin of a step. A layer with Layer::may_refuse(), or a seam of it, that refuses the step
  // writes a Refusal to it, in stream order with the compute stream. It is a float32 because the step all-reduces it
  // with MAX.
  virtual TensorView refusal() const { return {}; }
  // One stream waits for the work that the other has enqueued so far.
  void exchange_after_compute() { exchange().wait(compute().record_event()); }
  void compute_after_exchange() { compute().wait(exchange().record_event()); }
};

}  // namespace hawser::nn
