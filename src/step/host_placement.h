// `HostPlacement`: which flats have their state or their weights in pinned host memory from step to step. The schedule,
// the model state and the plan share it.
//
//   HostPlacement host{.state = {false, true, false}};   // of a model with three flats
//
// Master weights and slots of flat 1 are in host memory. Layers read its weights from the device, as those of the other
// flats.
#pragma once

#include <vector>

#include "models/model.h"

namespace hawser::step {

struct HostPlacement {
  // By flat; an empty list is as one of false. `state`: master weights and slots of a flat that trains; of a frozen
  // flat, its weights. `weights`: weights as layers read them, which are loaded before each use.
  std::vector<bool> state, weights;

  bool has_state(int flat) const { return !state.empty() && state[static_cast<std::size_t>(flat)]; }
  // Whether the flat's weights are loaded before each use: those that `weights` names, and frozen ones that `state`
  // names. InternalError if a list is neither empty nor one of all flats of the model.
  bool streams(const models::Model& model, int flat) const;
};

}  // namespace hawser::step
