// `Optimizer`: the contract between an optimizer and the executor. An optimizer keeps `slots()` values for each element
// of a flat; the executor provides them, sharded as the flat is, and calls prepare() once a step, then update() once
// for each trainable flat. It holds settings, no state. Parameters that are to be updated differently are in different
// flats (nn::FlatSpec::group). The one there is: make_adamw (optim/adamw_optimizer.h).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "nn/flat.h"

namespace hawser::optim {

// A value for each element of a flat, zero at first. Checkpoints store it as "optimizer/NAME/TENSOR".
struct StateSlot {
  std::string name;
  DType dtype = DType::f32;
};

// What an update must see whole.
enum class Granularity {
  element,  // nothing: shards may be cut anywhere
  block,    // blocks of FlatSpec::grain elements
  matrix,   // a segment of a parameter: q, k and v of a fused one are three
};

constexpr std::int64_t kKeptScalars = 4;

// One call of prepare().
struct Prepare {
  TensorView learning_rate;  // float32 [1]
  TensorView step;           // int32 [1]: updates so far, this one included and skipped steps not counted
  TensorView skip;           // int32 [1]: if not 0, no update follows, and `kept` must stay as it is
  // float32 [kKeptScalars]: the optimizer's own, from step to step and in checkpoints; 0 at first.
  TensorView kept;
  TensorView scalars;  // float32 [scalars()]: to be written
};

// One call of update(): elements [begin, begin + count) of a flat, all views [count].
struct FlatUpdate {
  const nn::Flat& flat;
  std::int64_t begin = 0, count = 0;
  TensorView weights;                 // in FlatSpec::stored (float32 unless a recipe says otherwise), updated in place
  TensorView gradient;                // float32, before clipping
  std::span<const TensorView> slots;  // in the order of slots(flat), updated in place
  TensorView compute;      // receives the updated weights, rounded to its dtype; empty: layers read `weights`, or the
                           // caller rounds, as it does for weights with scales
  TensorView scalars;      // what prepare() wrote
  TensorView coefficient;  // float32 [1]: factor of the gradient (clipping, loss scale)
  TensorView skip;         // int32 [1]: if not 0, update() changes nothing
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual std::string name() const = 0;  // as checkpoints store it: runs resume with the same optimizer only
  // Of a trainable flat. Both depend on nothing but the flat's spec and parameters.
  virtual std::vector<StateSlot> slots(const nn::Flat& flat) const = 0;
  virtual Granularity granularity(const nn::Flat& /*flat*/) const { return Granularity::element; }
  // Number of float32 values that prepare() computes.
  virtual std::int64_t scalars() const = 0;
  // Enqueues the computation of what update() reads from `scalars`, once a step.
  virtual void prepare(Stream& stream, const Prepare& step) const = 0;
  virtual void update(Stream& stream, const FlatUpdate& update) const = 0;
};

}  // namespace hawser::optim
