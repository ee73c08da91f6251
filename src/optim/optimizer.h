// `Optimizer`: the contract between an optimizer and the executor. An optimizer declares the state that it keeps
// (`slots`) and the phases of its update; the executor provides the state, sharded as nn/granularity.h says, calls
// prepare() once a step, then update() for each trainable flat and phase, and runs the exchanges between phases. It
// holds settings, no state. Parameters that are to be updated differently are in different flats (nn::FlatSpec::group,
// nn::FlatSpecOf). plan::make_optimizer makes that of a recipe.
//
// Example: an optimizer that divides each row's gradient by the root of a running mean of its squares has one value for
// each row. slots() returns {{.name = "row_sq", .granularity = {.kind = Granularity::Kind::row}}}. A shard may end
// inside of a row, so phases() returns {{.sums = nn::sum_count(flat, row)}, {}}: in phase 0, update() adds the squares
// of its own elements to sent.sums; the executor adds those of all shards; in phase 1, update() reads received.sums,
// updates slots[0] and then its elements of `weights`. nn::segment_ranges() says which rows a shard's elements are in,
// nn::segment_values() where the value of a row is: in a slot from `first` on, in sums from `sum_first` and the offset.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nn/granularity.h"
#include "ops/quantize/matrices.h"

namespace hawser::optim {

// FlatSpec::group of a trainable flat is in [0, kGroups); each group has a learning rate of its own.
constexpr int kGroups = 16;
// Values that an optimizer keeps of its own from step to step.
constexpr std::int64_t kKeptScalars = 4;

inline constexpr const char* kStatePrefix = "optimizer/";  // of the names of StateSlot in checkpoints

// A part of the state of a flat, zero at first. Checkpoints store it as "optimizer/NAME/TENSOR" (nn/granularity.h), so
// that any mesh loads what another saved.
struct StateSlot {
  std::string name;
  DType dtype = DType::f32;
  nn::Granularity granularity = {};
  bool of_weights = false;  // a value for each weight: that of a checkpoint without the slot is the weight
};

// A phase of the update of a flat, and what the ranks exchange after it, before the next phase. The last phase
// exchanges nothing. A phase has gathers or scatters, not both.
struct Phase {
  // float32 values that each rank adds to, zero at first. The next phase reads their sums over all ranks that together
  // hold one copy of the flat's global tensors, every element counted once; equal bits on these ranks. The layout
  // must be that of global tensors (nn::SegmentValues::sum_first), equal on all ranks.
  std::int64_t sums = 0;
  // A rank writes all elements of its shard; the next phase reads those of all shards of the flat.
  std::optional<DType> gathers = {};
  // A rank adds to any elements of the flat, zero at first; the next phase reads its own shard of their sum over the
  // ranks that have the shards. With work on a tensor done by one rank this sends results to where they belong. float32
  // or bf16.
  std::optional<DType> scatters = {};
  // The exchange is over the tensor ranks' slices of the flat, too: the flat is then that of all slices
  // (FlatUpdate::exchanged_element). All slices have equal sizes.
  bool slices = false;
};

// One call of prepare().
struct Prepare {
  TensorView learning_rate;  // float32 [kGroups]
  TensorView step;           // int32 [1]: updates so far, this one included and skipped steps not counted
  TensorView skip;           // int32 [1]: if not 0, no update follows, and `kept` must stay as it is
  TensorView kept;           // float32 [kKeptScalars]: from step to step and in checkpoints; 0 at first
  TensorView scalars;        // float32 [scalars()]: to be written
};

// What the phases of a flat exchange; empty views: nothing.
struct Exchanged {
  TensorView sums;   // float32 [Phase::sums]
  TensorView shard;  // [count], of gathers or scatters
  TensorView flat;   // [count * parts], the same for all shards; gaps and padding included. With Phase::slices
                     // [count * parts * slices]
};

// One call of update(): elements [begin, begin + count) of a flat, which are shard `part` of `parts`.
struct FlatUpdate {
  const nn::Flat& flat;
  std::int64_t begin = 0, count = 0;
  int part = 0, parts = 1;
  int phase = 0;  // index in phases(flat)
  // Tensor ranks have different slices of the flat's tensors, and this rank slice `slice` of `slices`: indices
  // [i * size, (i + 1) * size) of dim Segment::slice.dim are in slice i; of a range of a tensor, such as q of a
  // fused QKV, they count from its first row on (nn::range_slice). Each slice, and each shard of it,
  // is on `copies` ranks (Domain::kv_copies). A flat that is not sliced has one.
  int slice = 0, slices = 1, copies = 1;
  TensorView weights;   // [count] in FlatSpec::stored (float32 by default), updated in place
  TensorView gradient;  // float32 [count], before clipping. update() may overwrite it: no later op but the
                        // next phases reads it
  std::span<const TensorView> slots;  // in the order of slots(flat): [nn::value_count]; updated in place
  TensorView compute;  // [count]: receives the updated weights, rounded to its dtype; empty: layers read `weights`, or
                       // the caller rounds, as it does for weights with scales
  TensorView scalars;  // what prepare() wrote
  // Of the last phase, if the optimizer records amaxes. float32 [Flat::scale_count()], 0 before: the largest magnitude
  // of the updated weights in each part of `measured`, with the bits of ops::amax_of_matrices, also if the step is
  // skipped. Empty: not asked for.
  TensorView amax = {};
  std::span<const ops::EqualMatrices> measured = {};
  TensorView coefficient;  // float32 [1]: factor of the gradient (clipping, loss scale)
  TensorView skip;         // int32 [1]: if not 0, no phase changes weights, slots or `compute`; amax is written
  // Random numbers are a function of these and of the element of the global tensor (nn/segment_ranges.h): the same bits
  // on every mesh. `step`, int32 [1]: number of the step in the run.
  std::uint64_t seed = 0;
  TensorView step;
  TensorView updates;  // int32 [1]: Prepare::step
  Exchanged received;  // what the phase before exchanged: sums; the flat gathered, or the shard scattered
  Exchanged sent;      // to be written: sums; the shard to gather, or the flat to scatter
  // Scratch for this call, in the planned arena. One rank plans for all of its pipeline stage: each asks for the same
  // temps in the same order, in each step and whatever its shard has of the tensors, and each op lists all of every
  // view that it may touch (OpRecord::accesses). An element of a temp that no op of the planning rank lists may be in
  // the memory of another buffer.
  std::function<TensorView(DType, const Shape&)> temp;

  // The place in Exchanged::flat of a phase with Phase::slices of element `element` of the flat of slice `of`. The
  // ranks' shards are one after another: tensor ranks innermost.
  std::int64_t exchanged_element(std::int64_t element, int of) const {
    const std::int64_t shard = element / count;
    return ((shard / copies * slices + of) * copies + shard % copies) * count + element % count;
  }
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual std::string name() const = 0;  // as checkpoints store it: runs resume with the same optimizer only
  // Of a trainable flat. These depend on nothing but the flat's spec and parameters, and are equal on all ranks.
  virtual std::vector<StateSlot> slots(const nn::Flat& flat) const = 0;
  virtual std::vector<Phase> phases(const nn::Flat& /*flat*/) const { return {{}}; }
  // Whether an update needs complete matrices (nn/granularity.h). A phase then gathers them, with Phase::slices if
  // tensor ranks have slices of them. A slice of the leading dims of [E, out, in] has complete matrices.
  // step::ModelState rejects a flat whose matrices no phase completes, and one that has several slices of a matrix.
  virtual bool needs_matrices(const nn::Flat& /*flat*/) const { return false; }
  // Whether the last phase writes FlatUpdate::amax; otherwise the caller reads the updated weights once more.
  virtual bool records_amaxes(const nn::Flat& /*flat*/) const { return false; }
  // Number of float32 values that prepare() computes.
  virtual std::int64_t scalars() const = 0;
  // Enqueues the computation of what update() reads from `scalars`, once a step.
  virtual void prepare(Stream& stream, const Prepare& step) const = 0;
  virtual void update(Stream& stream, const FlatUpdate& update) const = 0;
};

}  // namespace hawser::optim
