// `Bound`: what an instruction works on, found in the executor's first step and used in every later one. Addresses do
// not change from step to step: buffers have fixed offsets, and a program is the same in every step.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "nn/layer.h"
#include "optim/optimizer.h"

namespace hawser::step {

// The gradient of one parameter in one instruction.
struct BoundGradient {
  nn::GradientTarget target;
  // What the instruction zeroes first, as the first one to write to the flat's gradient in a step: padding, and
  // parameters whose gradients the program does not compute.
  std::vector<TensorView> zeroed;
};

// Empty where the instruction has no such operand.
struct Bound {
  bool found = false;
  std::vector<nn::Scaled> weights;                        // by parameter
  std::vector<std::optional<BoundGradient>> gradients;    // by parameter; nullopt: not asked for so far
  nn::Saved saved;                                        // of a pass over a layer; saved.x is its input
  TensorView x, residual, dy, y;                          // activations; y is the instruction's own, or a gather's rows
  TensorView transposed;                                  // of a gather
  std::optional<nn::AuxiliaryViews> auxiliary;            // nullopt: not asked for so far
  std::vector<TensorView> other_stages;                   // auxiliary_loss: the statistics of layers of other stages
  optim::Exchanged received, sent;                        // of a phase of an update
  bool last_phase = false;                                // of an update
  TensorView stored;                                      // update, quantize_weights: master weights on the device
  TensorView compute;                                     // what these round to, after the optimizer, if anything
  std::vector<TensorView> slots;                          // update: the optimizer's, on the device
  std::vector<ops::EqualMatrices> measured;               // last phase: parts whose amaxes the optimizer records
  std::vector<std::pair<TensorView, TensorView>> copies;  // of an op that copies: from, to
  bool accumulate = false;                                // adds to what an earlier instruction of the step has written
  std::vector<TensorView> temps;                          // in the order in which they are asked for
};

}  // namespace hawser::step
