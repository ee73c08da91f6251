// `Optimizer`: the contract between an optimizer and the executor. An optimizer keeps `slots()` values for each element
// of a flat; the executor provides them, sharded as the flat is, and calls prepare() once a step, then update() once
// for each trainable flat. It holds settings, no state. The one there is: make_adamw (optim/adamw_optimizer.h).
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
  matrix,   // a parameter
};

// One call of update(): elements [begin, begin + count) of a flat, all views [count].
struct FlatUpdate {
  const nn::Flat& flat;
  std::int64_t begin = 0, count = 0;
  TensorView weights;                 // float32 master weights, updated in place
  TensorView gradient;                // float32, before clipping
  std::span<const TensorView> slots;  // in the order of slots(), updated in place
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
  virtual std::vector<StateSlot> slots() const = 0;
  virtual Granularity granularity() const { return Granularity::element; }
  // Number of float32 values that prepare() computes.
  virtual std::int64_t scalars() const = 0;
  // Enqueues the computation of `scalars` [scalars()] from the learning rate (float32 [1]) and the number of updates so
  // far, this one included and skipped steps not counted (int32 [1]).
  virtual void prepare(Stream& stream, const TensorView& learning_rate, const TensorView& step,
                       const TensorView& scalars) const = 0;
  virtual void update(Stream& stream, const FlatUpdate& update) const = 0;
};

}  // namespace hawser::optim
