// `Quantizer`: the contract between a quantized format of Linears and the executor. It rounds x, dy and weights to
// quantized values q with a scale s, so that x is about s q, and decides what scales follow from the maxima (amax) of
// earlier values. It holds settings, no state. nn/precision/ has implementations; tests have their own.
//
// Example: a Linear y = x W^T in FP8 with delayed scales, in a training step.
//
//   forward        q = quantize(x): E4M3, with the scale that the state keeps; it records the amax of x
//                  y = GEMM of q and W, which has been gathered in E4M3 with its own scale
//   backward       q = quantize(dy): E5M2, likewise; then dx = dy W, and dW = dy^T x
//   norm           a MAX of the amaxes of x and dy over the ranks
//   after updates  update_scales(): the amaxes enter the history, and new scales follow from it: of 448 = max(E4M3) and
//                  an amax of 3.5 the scale 3.5 / 448 = 1/128, so that 0.3 is rounded to 40/128 = 0.3125;
//                  weight_scales() and quantize_weights(): W for the next step
//
// x and dy: a Linear whose site has a format (SavePolicy::formats) passes them to quantize(), unless they come with a
// scale. With LinearFormat::fp8_delayed, the state has for each of them, at each site of each layer, a scale and a
// history of amaxes. In a training step forward records the amax of x and backward that of dy, over all micro-batches.
// Outside of training the scale is that of the matrix itself.
// A MAX over the ranks with different tokens, over tensor ranks and over pipeline stages (which have 0 for layers of
// other stages) makes them equal on every rank; update_scales() follows once, after the updates. So every pass of a
// step, recompute included, has the same scales. With the other formats scales are computed from the matrix and differ
// between ranks.
//
// Weights: a trainable flat with FlatSpec::scaled is quantized from its master weights, shard by shard, after each
// update: measure(), in whose place the optimizer may record the amaxes, and a MAX over the ranks that have other parts
// of the parameters, weight_scales(), quantize_weights(). So a gathered quantized weight has the bits of the quantized
// gathered weight. Frozen weights in FP8 are quantized in the same way once, as they are loaded. Weights with
// FlatSpec::quantized_on_use are gathered as they are: quantize_weight() rounds one for each GEMM that reads it.
//
// All work is enqueued on the given stream, or on LayerContext::compute().
#pragma once

#include <optional>
#include <vector>

#include "base/training_options.h"
#include "ops/quantize/fp8_output.h"
#include "ops/quantize/matrices.h"
#include "tensor/tensor.h"

namespace hawser::nn {

class Flat;
class LayerContext;
class Quantizer;
struct Scaled;

// An operand of a Linear's GEMMs, besides its weight.
enum class Operand { x, dy };
constexpr int kOperands = 2;
const char* to_string(Operand operand);

// How one operand of a Linear is quantized in one pass.
struct Quantization {
  LinearFormat format = LinearFormat::compute;
  const Quantizer* quantizer = nullptr;  // null with LinearFormat::compute
  Operand operand = Operand::x;
  // What the caller reads: Scaled::view, Scaled::transposed, or both. quantize() may leave the other one empty.
  bool rows = true, transposed = false;
  // Where Scaled::transposed, in FP8, and its scales are written. Empty views are temps.
  TensorView transposed_to = {}, used_to = {};
  // The GEMMs read the matrix itself: its amax is recorded, and it is not quantized (step::ExecutorSetup::calibrates).
  bool records_only = false;
  // float32 [1]: the scale, equal on every rank; not to be changed. If it is empty, the scale follows from the matrix
  // itself, as with fp8_current. fp8_delayed has one in training steps.
  TensorView scale;
  // float32 [1]: quantize() raises it to the largest absolute value of the matrix's rows that are tokens
  // (BatchViews::token_mask; with row_count, all rows before it), or sets it to NaN if one of them is NaN. If it is
  // empty, nothing is recorded.
  TensorView amax;
  // saturated, float32 [1]: quantize() adds the number of these rows' elements that are beyond the range of the scale
  // (ops/quantize/quantize.h). elements: it adds, on the host, the number of the matrix's elements, padding included,
  // or with row_count those of `expected_rows`. With an empty view and null nothing is counted.
  TensorView saturated;
  std::int64_t* elements = nullptr;
  std::int64_t first_row = 0;  // of the matrix, among the RowCounts::full rows of the micro-batch
  // int32 [1], on the device: rows of experts. Those from there on are undefined, and all before it count. If it is
  // empty, the rows are those of the micro-batch.
  TensorView row_count = {};
  std::int64_t expected_rows = 0;  // with row_count: whose elements `elements` counts
};

// Elements [begin, begin + values.elements()) of a flat.
struct FlatValues {
  const Flat& flat;
  std::int64_t begin = 0;
  TensorView values;  // one dim, float32 or bf16: FlatSpec::stored, or loaded values of a frozen flat
};

// One call of judge().
struct JudgedStep {
  TensorView amax, scales;  // float32 [sites]: of this step, equal on every rank; scales: those that it used
  // float32 [sites]: of Quantization::saturated and elements of this step, the maxima over the ranks that the amaxes
  // are reduced over: equal on every rank. elements: 0 where nothing was counted.
  TensorView saturated, elements;
  TensorView step;  // int32 [1]: StepRecord::step
  // int32 [1]: OptimizerProgress::replay_step. Not negative: steps with another number change nothing, until that step
  // runs again and counts.
  TensorView replay_step;
  TensorView replays;            // int32 [1]: OptimizerProgress::replays
  TensorView skip;               // int32 [1]: step::Skip, 0 if the step counts so far
  TensorView worst, worst_site;  // float32, int32 [1]: StepResult::saturation, saturated_site; may be left
  std::int32_t saturates = 0;    // value of `skip` of a step that runs again; its amaxes refresh the scales
  std::int32_t waits = 0;        // value of `skip` of steps that another one runs before
  std::int32_t refused = 0;      // value of `skip` of a step without results: all stays as it is, since it runs again
};

// One call of update_scales().
struct SiteScales {
  TensorView amax;             // float32 [sites]: of this step, equal on every rank; 0 where no pass recorded one
  TensorView history;          // float32 [sites, history()]: 0 at first
  TensorView scales;           // float32 [sites]: 1 at first
  TensorView skip;             // int32 [1]: if neither 0 nor `refreshes`, history and scales stay as they are
  std::int32_t refreshes = 0;  // a value of `skip` of steps that update nothing but history and scales
};

class Quantizer {
 public:
  virtual ~Quantizer() = default;
  // fp8_delayed: number of amaxes that are kept of each operand.
  virtual std::int64_t history() const = 0;
  // fp8_delayed: a training step for which there is no history runs twice, first without quantized x and dy and without
  // an update, to record amaxes (engine::Session).
  virtual bool calibrates() const { return false; }

  // The quantized matrix [T, columns], rows [first_row, first_row + T) of the micro-batch in their order, as what GEMMs
  // read: temps of the context. The same bits for the same matrix and scale, in every pass. `matrix` is not changed.
  virtual Scaled quantize(LayerContext&, const Quantization&, const TensorView& matrix) const = 0;

  // Where an op that computes a matrix of this shape writes what quantize() would return, in place of the matrix; its
  // views are as those of quantize(). Empty if the scale follows from the matrix, or the quantizer has no such form.
  virtual std::optional<ops::Fp8Output> output(LayerContext&, const Quantization&, const Shape& shape) const;

  // A weight [outputs, inputs] of the context as a GEMM reads it, as Scaled::view or as Scaled::transposed. The
  // default: as it is, since the flat has it quantized. Not called in a pass that records only.
  virtual Scaled quantize_weight(LayerContext&, const Scaled& weight, bool transposed) const;

  // With Quantization::records_only: records the amax. Needed by quantizers that calibrate.
  virtual void record(LayerContext&, const Quantization&, const TensorView& matrix) const;

  // After the gradient's norm is known and before the step is counted: may set `skip`, e.g. because values were
  // saturated (amax beyond the largest value times the scale), and then `replay_step`; and clears the latter. Only with
  // sites of fp8_delayed. Not of a step whose x and dy are not quantized (Quantization::records_only).
  virtual void judge(Stream&, const JudgedStep&) const {}
  // Once a training step, after the last update. An amax that is not finite must not enter the history.
  virtual void update_scales(Stream&, const SiteScales&) const = 0;

  // Writes the amax of each scale's part of the parameters, float32 [Flat::scale_count()], as far as the piece has it;
  // 0 where it has nothing.
  virtual void measure(Stream&, const FlatValues& piece, const TensorView& amax) const = 0;
  // The parts of the piece that begins at element `begin` of the flat whose amaxes measure() writes, if they are those
  // of ops::amax_of_matrices: an optimizer may then record them as it writes the weights (optim::FlatUpdate::amax).
  // Otherwise there are none.
  virtual std::vector<ops::EqualMatrices> measured_matrices(const Flat& /*flat*/, std::int64_t /*begin*/) const {
    return {};
  }
  // The scales [Flat::scale_count()] of all parameters from the amaxes of all ranks. An amax that is not finite must
  // leave its scale as it is.
  virtual void weight_scales(Stream&, const Flat& flat, const TensorView& amax, const TensorView& scales) const = 0;
  // q of each element of the piece: dense [count], in FlatSpec::gathered. It does not depend on how the flat is cut.
  virtual void quantize_weights(Stream&, const FlatValues& piece, const TensorView& scales,
                                const TensorView& q) const = 0;
};

}  // namespace hawser::nn
